// The decoder of images that native code has no codec for, as a Python callable.
#pragma once

#include "bindings/bindings.h"
#include "image/program.h"

namespace fastload::bindings {

// `decode` is called with the GIL as (encoded: bytes, channels: int) and returns a C-contiguous HWC uint8
// array; what it raises passes through as nb::python_error. None makes an empty FallbackDecoder. The result
// may be called without the GIL; `decode` must outlive it.
image::FallbackDecoder fallback_decoder(nb::handle decode);

}  // namespace fastload::bindings

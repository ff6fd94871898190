// Raw pixels: binary Netpbm files (PPM, PGM), read where they lie.
#pragma once

#include <cstddef>
#include <optional>
#include <span>

#include "image/jpeg.h"

namespace fastload::image {

// The pixels of a binary PPM (`channels` 3) or PGM (1) file of 8 bits without comments; empty for every other
// file, which is the fallback decoder's. Throws Error (decode) where pixels are missing, or more than
// kMaxPixels. The view lives as long as `encoded`; nothing beyond it may be read.
std::optional<View> view_netpbm(std::span<const std::byte> encoded, int channels);

}  // namespace fastload::image

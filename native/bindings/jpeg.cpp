// _core.segment_jpeg.
#include <nanobind/stl/pair.h>

#include <utility>

#include "bindings/bindings.h"
#include "bindings/buffer.h"
#include "image/jpeg_segment.h"

namespace fastload::bindings {
namespace {

std::pair<nb::object, nb::object> segment(nb::handle data, bool keep_icc) {
  const ReadBuffer buffer(data);
  image::Segmented result;
  {
    const nb::gil_scoped_release released;
    result = image::segment_jpeg(buffer.bytes(), keep_icc);
  }
  if (result.encoded.empty()) return {nb::none(), nb::str(result.reason.data(), result.reason.size())};
  return {nb::bytes(result.encoded.data(), result.encoded.size()), nb::none()};
}

}  // namespace

void bind_jpeg(nb::module_& module) {
  module.def(
      "segment_jpeg", &segment, nb::arg("encoded"), nb::arg("keep_icc") = false,
      nb::sig("def segment_jpeg(encoded: object, keep_icc: bool = False) -> tuple[bytes | None, str | None]"),
      "Rewrite a JPEG image so that parts of it decode alone; or say why it is to be kept as it is.");
}

}  // namespace fastload::bindings

// _core.crc32c.
#include "core/crc32c.h"

#include "bindings/bindings.h"
#include "bindings/buffer.h"

namespace fastload::bindings {
namespace {

// Below this the call is shorter than handing the GIL over and back.
constexpr std::size_t release_bytes = std::size_t{1} << 16;

std::uint32_t checksum(nb::handle data, std::uint32_t value) {
  const ReadBuffer buffer(data);
  if (buffer.bytes().size() < release_bytes) return crc32c(buffer.bytes(), value);
  const nb::gil_scoped_release released;
  return crc32c(buffer.bytes(), value);
}

}  // namespace

void bind_crc32c(nb::module_& module) {
  module.def("crc32c", &checksum, nb::arg("buffer"), nb::arg("value") = 0,
             nb::sig("def crc32c(buffer: object, value: int = 0) -> int"),
             "Continue the CRC-32C `value` over the bytes of `buffer`.");
}

}  // namespace fastload::bindings

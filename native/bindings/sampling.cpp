// _core.permute.
#include <nanobind/ndarray.h>

#include <cstdint>
#include <memory>
#include <span>

#include "bindings/bindings.h"
#include "core/permutation.h"

namespace fastload::bindings {
namespace {

using Positions = nb::ndarray<const std::int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Records = nb::ndarray<nb::numpy, std::int64_t, nb::ndim<1>, nb::c_contig>;

Records permute(const Positions& positions, std::uint64_t count, std::uint64_t seed, std::uint64_t epoch) {
  const std::size_t size = positions.size();
  auto records = std::make_unique_for_overwrite<std::int64_t[]>(size);
  {
    const nb::gil_scoped_release released;
    Permutation(count, seed, epoch).apply({positions.data(), size}, {records.get(), size});
  }
  std::int64_t* data = records.get();
  const nb::capsule owner(data, [](void* memory) noexcept { delete[] static_cast<std::int64_t*>(memory); });
  records.release();  // the capsule owns it now
  return Records(data, {size}, owner);
}

}  // namespace

void bind_sampling(nb::module_& module) {
  module.def("permute", &permute, nb::arg("positions"), nb::arg("count"), nb::arg("seed"), nb::arg("epoch"),
             "Return the records (int64) at `positions` (int64) of the epoch's order of `count` records.");
}

}  // namespace fastload::bindings

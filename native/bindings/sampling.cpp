// _core.permute and _core.permute_each.
#include <nanobind/ndarray.h>

#include <cstdint>
#include <memory>
#include <span>

#include "bindings/bindings.h"
#include "core/error.h"
#include "core/permutation.h"

namespace fastload::bindings {
namespace {

using Positions = nb::ndarray<const std::int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Keys = nb::ndarray<const std::uint64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Records = nb::ndarray<nb::numpy, std::int64_t, nb::ndim<1>, nb::c_contig>;

// Returns a new array that `fill` writes, without the GIL.
template <typename Fill>
Records filled(std::size_t size, Fill fill) {
  auto records = std::make_unique_for_overwrite<std::int64_t[]>(size);
  {
    const nb::gil_scoped_release released;
    fill(std::span<std::int64_t>(records.get(), size));
  }
  std::int64_t* data = records.get();
  const nb::capsule owner(data, [](void* memory) noexcept { delete[] static_cast<std::int64_t*>(memory); });
  records.release();  // the capsule owns it now
  return Records(data, {size}, owner);
}

Records permute(const Positions& positions, std::uint64_t count, std::uint64_t key) {
  const std::span<const std::int64_t> given(positions.data(), positions.size());
  return filled(given.size(),
                [&](std::span<std::int64_t> out) { Permutation(count, key).apply(given, out); });
}

Records permute_all(const Positions& positions, const Positions& counts, const Keys& keys) {
  const std::size_t size = positions.size();
  if (counts.size() != size || keys.size() != size) {
    throw Error(ErrorKind::usage, "positions, counts and keys differ in length");
  }
  return filled(size, [&](std::span<std::int64_t> out) {
    permute_each({positions.data(), size}, {counts.data(), size}, {keys.data(), size}, out);
  });
}

}  // namespace

void bind_sampling(nb::module_& module) {
  module.def("permute", &permute, nb::arg("positions"), nb::arg("count"), nb::arg("key"),
             "Return where `positions` (int64) go in the permutation of `count` that `key` names.");
  module.def("permute_each", &permute_all, nb::arg("positions"), nb::arg("counts"), nb::arg("keys"),
             "Return where each position (int64) goes in the permutation of its own count and key (uint64).");
}

}  // namespace fastload::bindings

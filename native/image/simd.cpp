#include "image/simd.h"

#include <array>
#include <atomic>
#include <cstddef>

#include "image/kernels.h"

namespace fastload::image {
namespace {

struct Found {
  Found() {
    for (const Kernels* found : {find_plain(), find_neon(), find_avx2(), find_avx512()}) {
      if (found == nullptr) continue;
      names[count] = found->simd;
      tables[count++] = found;
    }
    chosen = tables[count - 1];
  }

  std::array<Simd, 4> names{};
  std::array<const Kernels*, 4> tables{};
  std::size_t count = 0;
  std::atomic<const Kernels*> chosen;
};

Found& found() {
  static Found value;
  return value;
}

}  // namespace

std::string_view name_of(Simd simd) {
  constexpr std::string_view names[] = {"plain", "neon", "avx2", "avx512"};
  return names[static_cast<std::size_t>(simd)];
}

std::span<const Simd> available_simd() { return {found().names.data(), found().count}; }

const Kernels& kernels() { return *found().chosen.load(std::memory_order_relaxed); }

Simd simd() { return kernels().simd; }

void force_simd(Simd choice) {
  for (std::size_t i = 0; i < found().count; ++i)
    if (found().names[i] == choice) found().chosen.store(found().tables[i], std::memory_order_relaxed);
}

}  // namespace fastload::image

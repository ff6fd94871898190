#include "image/simd.h"

#include <atomic>

#if FASTLOAD_AVX2
#include <cpuid.h>
#endif

namespace fastload::image {
namespace {

Simd best() {
#if FASTLOAD_AVX2
  __builtin_cpu_init();
  // Not every compiler's __builtin_cpu_supports knows F16C.
  unsigned a = 0, b = 0, c = 0, d = 0;
  const bool has_f16c = __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & bit_F16C) != 0;
  if (__builtin_cpu_supports("avx2") && has_f16c) return Simd::avx2;
#endif
  return Simd::plain;
}

std::atomic<Simd>& chosen() {
  static std::atomic<Simd> value{best()};
  return value;
}

}  // namespace

Simd simd() { return chosen().load(std::memory_order_relaxed); }

void force_simd(Simd choice) {
  if (choice == Simd::avx2 && best() != Simd::avx2) return;
  chosen().store(choice, std::memory_order_relaxed);
}

}  // namespace fastload::image

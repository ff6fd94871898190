#include "image/simd.h"

#include <atomic>

namespace fastload::image {
namespace {

Simd best() {
#if FASTLOAD_AVX2
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("f16c")) return Simd::avx2;
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

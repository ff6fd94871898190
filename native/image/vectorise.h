// Plain loops compiled a second time for a larger instruction set, where the compiler vectorises them. Both
// give the same bits: the loops hold integers, and floats in an order that is fixed and never contracted.
#pragma once

#include <utility>

#include "image/simd.h"

#if defined(__GNUC__) || defined(__clang__)
#define FASTLOAD_INLINE __attribute__((always_inline)) inline
#else
#define FASTLOAD_INLINE inline
#endif

namespace fastload::image {

#if FASTLOAD_AVX2
template <typename Loop, typename... Arguments>
FASTLOAD_TARGET_AVX2 void run_avx2(Arguments... arguments) {
  Loop::run(arguments...);
}
#endif

// Runs Loop::run(arguments...), which is FASTLOAD_INLINE, for the instruction set in use.
template <typename Loop, typename... Arguments>
void vectorised(Arguments... arguments) {
#if FASTLOAD_AVX2
  if (simd() == Simd::avx2) return run_avx2<Loop>(arguments...);
#endif
  Loop::run(arguments...);
}

}  // namespace fastload::image

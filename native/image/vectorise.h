// Plain loops compiled a second time for AVX2, where the compiler vectorises them; it does so for NEON, which
// every 64-bit ARM CPU has, in the plain build. Both give the same bits: the loops hold integers, and floats
// in an order that is fixed and never contracted.
#pragma once

#include <utility>

#include "image/simd.h"

#if defined(__GNUC__) || defined(__clang__)
#define FASTLOAD_INLINE __attribute__((always_inline)) inline
#else
#define FASTLOAD_INLINE inline
#endif

namespace fastload::image {

#if FASTLOAD_X86
template <typename Loop, typename... Arguments>
FASTLOAD_TARGET_AVX2 void run_avx2(Arguments... arguments) {
  Loop::run(arguments...);
}
#endif

// Runs Loop::run(arguments...), which is FASTLOAD_INLINE, for the instruction set in use.
template <typename Loop, typename... Arguments>
void vectorised(Arguments... arguments) {
#if FASTLOAD_X86
  if (simd() == Simd::avx2 || simd() == Simd::avx512) return run_avx2<Loop>(arguments...);
#endif
  Loop::run(arguments...);
}

}  // namespace fastload::image

// Which instruction set the image code uses. Every choice gives the same bits.
#pragma once

#if (defined(__x86_64__) || defined(__i386__)) && (defined(__GNUC__) || defined(__clang__))
#define FASTLOAD_AVX2 1
#define FASTLOAD_TARGET_AVX2 __attribute__((target("avx2,f16c")))
#else
#define FASTLOAD_AVX2 0
#endif

namespace fastload::image {

enum class Simd { plain, avx2 };

// The best set this machine has, unless force_simd() chose another.
Simd simd();

// For tests: use `choice` from now on, in all threads. Asking for more than the machine has does nothing.
void force_simd(Simd choice);

}  // namespace fastload::image

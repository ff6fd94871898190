// Which instruction set the image code uses. Every choice gives the same bits.
#pragma once

#include <span>
#include <string_view>

#if defined(__x86_64__) && (defined(__GNUC__) || defined(__clang__))
#define FASTLOAD_X86 1
#define FASTLOAD_TARGET_AVX2 __attribute__((target("avx2,f16c")))
#define FASTLOAD_TARGET_BMI2 __attribute__((target("bmi,bmi2")))
#else
#define FASTLOAD_X86 0
#define FASTLOAD_TARGET_BMI2
#endif

namespace fastload::image {

// AVX-512 here is F, BW and VL, and has everything of AVX2.
enum class Simd { plain, neon, avx2, avx512 };

std::string_view name_of(Simd simd);

// What this machine has, from plain to the best.
std::span<const Simd> available_simd();

// The best of these, unless force_simd() chose another.
Simd simd();

// For tests: use `choice` from now on, in all threads. Asking for what the machine has not does nothing.
void force_simd(Simd choice);

}  // namespace fastload::image

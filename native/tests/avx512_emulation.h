// The AVX-512 instructions that kernels_avx512.cpp uses, made of SSE2 and plain code after Intel's Intrinsics
// Guide, so that the file is tested on any x86-64 machine. What works lane by lane of 16 bytes is the SSE2
// instruction four times.
#pragma once

#include <emmintrin.h>

#include <cstdint>
#include <cstring>

#include "image/kernels.h"

#define FASTLOAD_TARGET_AVX512

namespace fastload::image {
namespace emulation {

constexpr int _MM_FROUND_TO_NEAREST_INT = 0, _MM_FROUND_NO_EXC = 8;

struct __m512i {
  __m128i lane[4];
};
struct __m512 {
  float value[16];
};
struct __m256i {
  std::uint16_t value[16];
};

template <typename Operation>
__m512i each_lane(const __m512i& a, const __m512i& b, Operation&& operation) {
  __m512i result;
  for (int i = 0; i < 4; ++i) result.lane[i] = operation(a.lane[i], b.lane[i]);
  return result;
}

template <typename Operation>
__m512 each_float(const __m512& a, const __m512& b, Operation&& operation) {
  __m512 result;
  for (int i = 0; i < 16; ++i) result.value[i] = operation(a.value[i], b.value[i]);
  return result;
}

template <typename Result>
Result load(const void* from) {
  Result result;
  std::memcpy(&result, from, sizeof result);
  return result;
}

inline __m512i _mm512_setzero_si512() { return {}; }
inline __m512i _mm512_set1_epi32(int x) {
  const __m128i lane = _mm_set1_epi32(x);
  return {{lane, lane, lane, lane}};
}
inline __m512i _mm512_set_epi64(long long h, long long g, long long f, long long e, long long d, long long c,
                                long long b, long long a) {
  return {{_mm_set_epi64x(b, a), _mm_set_epi64x(d, c), _mm_set_epi64x(f, e), _mm_set_epi64x(h, g)}};
}

inline __m512i _mm512_loadu_si512(const void* from) { return load<__m512i>(from); }
inline __m512 _mm512_loadu_ps(const void* from) { return load<__m512>(from); }
inline void _mm512_storeu_si512(void* to, const __m512i& a) { std::memcpy(to, &a, sizeof a); }
inline void _mm512_storeu_ps(void* to, const __m512& a) { std::memcpy(to, &a, sizeof a); }
inline void _mm256_storeu_si256(__m256i* to, const __m256i& a) { std::memcpy(to, &a, sizeof a); }
inline __m512i _mm512_castps_si512(const __m512& a) { return load<__m512i>(&a); }

inline __m512i _mm512_unpacklo_epi8(const __m512i& a, const __m512i& b) {
  return each_lane(a, b, [](__m128i x, __m128i y) { return _mm_unpacklo_epi8(x, y); });
}
inline __m512i _mm512_unpackhi_epi8(const __m512i& a, const __m512i& b) {
  return each_lane(a, b, [](__m128i x, __m128i y) { return _mm_unpackhi_epi8(x, y); });
}
inline __m512i _mm512_madd_epi16(const __m512i& a, const __m512i& b) {
  return each_lane(a, b, [](__m128i x, __m128i y) { return _mm_madd_epi16(x, y); });
}
inline __m512i _mm512_packs_epi32(const __m512i& a, const __m512i& b) {
  return each_lane(a, b, [](__m128i x, __m128i y) { return _mm_packs_epi32(x, y); });
}
inline __m512i _mm512_add_epi32(const __m512i& a, const __m512i& b) {
  return each_lane(a, b, [](__m128i x, __m128i y) { return _mm_add_epi32(x, y); });
}
inline __m512i _mm512_and_si512(const __m512i& a, const __m512i& b) {
  return each_lane(a, b, [](__m128i x, __m128i y) { return _mm_and_si128(x, y); });
}
inline __m512i _mm512_srai_epi32(const __m512i& a, int count) {
  return each_lane(a, a, [count](__m128i x, __m128i) { return _mm_srai_epi32(x, count); });
}
inline __m512i _mm512_srli_epi32(const __m512i& a, int count) {
  return each_lane(a, a, [count](__m128i x, __m128i) { return _mm_srli_epi32(x, count); });
}

inline __m512i _mm512_permutex2var_epi64(const __m512i& a, const __m512i& index, const __m512i& b) {
  std::uint64_t from[16], at[8], to[8];
  std::memcpy(from, &a, 64);
  std::memcpy(from + 8, &b, 64);
  std::memcpy(at, &index, 64);
  for (int i = 0; i < 8; ++i) to[i] = from[at[i] & 15];
  return load<__m512i>(to);
}

inline __m512i _mm512_cvtepu8_epi32(__m128i a) {
  std::uint8_t bytes[16];
  std::uint32_t wide[16];
  std::memcpy(bytes, &a, 16);
  for (int i = 0; i < 16; ++i) wide[i] = bytes[i];
  return load<__m512i>(wide);
}
inline __m256i _mm512_cvtepi32_epi16(const __m512i& a) {
  std::uint32_t wide[16];
  std::memcpy(wide, &a, 64);
  __m256i result;
  for (int i = 0; i < 16; ++i) result.value[i] = static_cast<std::uint16_t>(wide[i]);
  return result;
}
inline __m512 _mm512_cvtepi32_ps(const __m512i& a) {
  std::int32_t whole[16];
  std::memcpy(whole, &a, 64);
  __m512 result;
  for (int i = 0; i < 16; ++i) result.value[i] = static_cast<float>(whole[i]);
  return result;
}
inline __m256i _mm512_cvtps_ph(const __m512& a, int) {
  __m256i result;
  for (int i = 0; i < 16; ++i) result.value[i] = to_float16(a.value[i]);
  return result;
}

inline __m512 _mm512_mul_ps(const __m512& a, const __m512& b) {
  return each_float(a, b, [](float x, float y) { return x * y; });
}
inline __m512 _mm512_add_ps(const __m512& a, const __m512& b) {
  return each_float(a, b, [](float x, float y) { return x + y; });
}

}  // namespace emulation

using namespace emulation;

}  // namespace fastload::image

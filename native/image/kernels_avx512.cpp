// The loops that gain from vectors of 64 bytes; the others are those of AVX2. The horizontal pass is one of
// these: it gathers 16 bytes here and there, and putting four of them into a vector costs what it saves.
#include "image/kernels.h"

#if FASTLOAD_X86
#if defined(FASTLOAD_EMULATE_AVX512)  // in tests: the instructions used here, made of SSE2
#include "tests/avx512_emulation.h"
#else
#include <immintrin.h>
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"  // GCC's own header (its bug 105593)
#endif
#define FASTLOAD_TARGET_AVX512 __attribute__((target("avx512f,avx512bw,avx512vl")))
#endif

#include <algorithm>
#include <cstring>

namespace fastload::image {
namespace {

FASTLOAD_TARGET_AVX512 void blend_rows(const std::uint8_t* const* rows, const std::int32_t* pairs,
                                       int pair_count, std::size_t count, std::int16_t* out) {
  const __m512i zero = _mm512_setzero_si512();
  constexpr int shift = kFastBits - kMiddleBits;
  if (count < 64) return find_avx2()->blend_rows(rows, pairs, pair_count, count, out);
  // The last step overlaps the one before, since pixels in a file end where they end.
  for (std::size_t i = 0; i < count; i = i + 64 < count ? std::min(i + 64, count - 64) : count) {
    __m512i sum0 = _mm512_set1_epi32(1 << (shift - 1));
    __m512i sum1 = sum0, sum2 = sum0, sum3 = sum0;
    for (int p = 0; p < pair_count; ++p) {
      const __m512i weights = _mm512_set1_epi32(pairs[p]);
      const __m512i first = _mm512_loadu_si512(rows[2 * p] + i);
      const __m512i second = _mm512_loadu_si512(rows[2 * p + 1] + i);
      const __m512i low = _mm512_unpacklo_epi8(first, second), high = _mm512_unpackhi_epi8(first, second);
      sum0 = _mm512_add_epi32(sum0, _mm512_madd_epi16(_mm512_unpacklo_epi8(low, zero), weights));
      sum1 = _mm512_add_epi32(sum1, _mm512_madd_epi16(_mm512_unpackhi_epi8(low, zero), weights));
      sum2 = _mm512_add_epi32(sum2, _mm512_madd_epi16(_mm512_unpacklo_epi8(high, zero), weights));
      sum3 = _mm512_add_epi32(sum3, _mm512_madd_epi16(_mm512_unpackhi_epi8(high, zero), weights));
    }
    // Lane n holds columns 16 * n to 16 * n + 15, the first eight in `a`.
    const __m512i a = _mm512_packs_epi32(_mm512_srai_epi32(sum0, shift), _mm512_srai_epi32(sum1, shift));
    const __m512i b = _mm512_packs_epi32(_mm512_srai_epi32(sum2, shift), _mm512_srai_epi32(sum3, shift));
    const __m512i low_lanes = _mm512_set_epi64(11, 10, 3, 2, 9, 8, 1, 0);
    const __m512i high_lanes = _mm512_set_epi64(15, 14, 7, 6, 13, 12, 5, 4);
    _mm512_storeu_si512(out + i, _mm512_permutex2var_epi64(a, low_lanes, b));
    _mm512_storeu_si512(out + i + 32, _mm512_permutex2var_epi64(a, high_lanes, b));
  }
}

// Sixteen floats to bfloat16, half to even.
FASTLOAD_TARGET_AVX512 inline __m256i round_bfloat16(__m512 values) {
  const __m512i bits = _mm512_castps_si512(values);
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  const __m512i sum = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7FFF)), odd);
  return _mm512_cvtepi32_epi16(_mm512_srli_epi32(sum, 16));
}

template <ElementType Type>
FASTLOAD_TARGET_AVX512 void convert_to(const std::uint8_t* in, std::size_t count, const float* a,
                                       const float* b, std::byte* out) {
  float twice_a[48], twice_b[48];
  for (std::size_t half = 0; half < 48; half += 24) {
    std::memcpy(twice_a + half, a, 24 * sizeof(float));
    std::memcpy(twice_b + half, b, 24 * sizeof(float));
  }
  const __m512 scale[3] = {_mm512_loadu_ps(twice_a), _mm512_loadu_ps(twice_a + 16),
                           _mm512_loadu_ps(twice_a + 32)};
  const __m512 offset[3] = {_mm512_loadu_ps(twice_b), _mm512_loadu_ps(twice_b + 16),
                            _mm512_loadu_ps(twice_b + 32)};
  constexpr std::size_t bytes = Type == ElementType::float32 ? 4 : 2;
  std::size_t i = 0;
  for (; i + 48 <= count; i += 48) {
    for (std::size_t part = 0; part < 3; ++part) {
      const std::size_t at = i + 16 * part;
      const __m128i values = _mm_loadu_si128(reinterpret_cast<const __m128i*>(in + at));
      const __m512 x = _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(values));
      const __m512 y = _mm512_add_ps(_mm512_mul_ps(x, scale[part]), offset[part]);
      if constexpr (Type == ElementType::float32) {
        _mm512_storeu_ps(out + bytes * at, y);
      } else {
        __m256i halves;
        if constexpr (Type == ElementType::float16) {
          halves = _mm512_cvtps_ph(y, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
        } else {
          halves = round_bfloat16(y);
        }
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + bytes * at), halves);
      }
    }
  }
  find_avx2()->convert(in + i, count - i, a, b, Type, out + bytes * i);
}

void convert(const std::uint8_t* in, std::size_t count, const float* a, const float* b, ElementType type,
             std::byte* out) {
  switch (type) {
    case ElementType::float16:
      return convert_to<ElementType::float16>(in, count, a, b, out);
    case ElementType::bfloat16:
      return convert_to<ElementType::bfloat16>(in, count, a, b, out);
    default:
      return convert_to<ElementType::float32>(in, count, a, b, out);
  }
}

// Not the CPUs that lower their clock for vectors of 64 bytes: those without VBMI (before Ice Lake and Zen
// 4).
bool has_instructions() {
#if defined(FASTLOAD_EMULATE_AVX512)
  return true;
#else
  __builtin_cpu_init();
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512vbmi");
#endif
}

}  // namespace

const Kernels* find_avx512() {
  const Kernels* narrower = find_avx2();
  if (narrower == nullptr || !has_instructions()) return nullptr;
  static const Kernels table = {Simd::avx512,           blend_rows, narrower->blend_columns,
                                narrower->deinterleave, convert,    narrower->mix};
  return &table;
}

}  // namespace fastload::image

#else

const fastload::image::Kernels* fastload::image::find_avx512() { return nullptr; }

#endif

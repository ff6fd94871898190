#include "image/kernels.h"

#if FASTLOAD_AVX2
#include <immintrin.h>

#include <algorithm>
#endif

namespace fastload::image {

#if FASTLOAD_AVX2
namespace {

FASTLOAD_TARGET_AVX2 inline __m128i load16(const void* p) {
  return _mm_loadu_si128(static_cast<const __m128i*>(p));
}
FASTLOAD_TARGET_AVX2 inline __m256i load32(const void* p) {
  return _mm256_loadu_si256(static_cast<const __m256i*>(p));
}
FASTLOAD_TARGET_AVX2 inline void store16(void* p, __m128i v) {
  _mm_storeu_si128(static_cast<__m128i*>(p), v);
}
FASTLOAD_TARGET_AVX2 inline void store32(void* p, __m256i v) {
  _mm256_storeu_si256(static_cast<__m256i*>(p), v);
}

// Two pixels' int16 channels (r0 g0 b0 r1 g1 b1 . .) in the order that multiply-add wants: r0 r1 g0 g1 b0 b1
// - -.
FASTLOAD_TARGET_AVX2 inline __m256i pair_order() {
  return _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 1, 6, 7, 2, 3, 8, 9, 4, 5, 10, 11, -1, -1, -1, -1));
}

// Eight outputs: those of lane 0 are 0..3, those of lane 1 are 4..7, each as r g b 0.
template <int Pairs>  // 0: as many as `pairs` says
FASTLOAD_TARGET_AVX2 inline __m256i blend_block(const std::int16_t* row, const std::int32_t* offsets,
                                                const std::int16_t* spread, int pairs) {
  const __m256i order = pair_order();
  const int count = Pairs == 0 ? pairs : Pairs;
  __m256i sums[4];
  for (int j = 0; j < 4; ++j) {
    __m256i sum = _mm256_set1_epi32(1 << (kFastBits + kMiddleBits - 1));
    const std::int16_t* low = row + offsets[j];
    const std::int16_t* high = row + offsets[j + 4];
    const std::int16_t* weights = spread + j * count * 16;
    for (int p = 0; p < count; ++p) {
      const __m256i both =
          _mm256_inserti128_si256(_mm256_castsi128_si256(load16(low + 6 * p)), load16(high + 6 * p), 1);
      sum = _mm256_add_epi32(sum,
                             _mm256_madd_epi16(_mm256_shuffle_epi8(both, order), load32(weights + 16 * p)));
    }
    sums[j] = _mm256_srai_epi32(sum, kFastBits + kMiddleBits);
  }
  return _mm256_packus_epi16(_mm256_packs_epi32(sums[0], sums[1]), _mm256_packs_epi32(sums[2], sums[3]));
}

FASTLOAD_TARGET_AVX2 inline void store_planar(__m256i block, std::uint8_t* out, std::size_t plane_stride) {
  const __m256i grouped = _mm256_shuffle_epi8(
      block,
      _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15)));
  const __m256i planes = _mm256_permutevar8x32_epi32(grouped, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
  const __m128i first = _mm256_castsi256_si128(planes);
  _mm_storel_epi64(reinterpret_cast<__m128i*>(out), first);
  _mm_storel_epi64(reinterpret_cast<__m128i*>(out + plane_stride), _mm_unpackhi_epi64(first, first));
  _mm_storel_epi64(reinterpret_cast<__m128i*>(out + 2 * plane_stride), _mm256_extracti128_si256(planes, 1));
}

FASTLOAD_TARGET_AVX2 inline void store_interleaved(__m256i block, std::uint8_t* out) {
  const __m256i tight = _mm256_shuffle_epi8(
      block,
      _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 1, 2, 4, 5, 6, 8, 9, 10, 12, 13, 14, -1, -1, -1, -1)));
  store16(out, _mm256_castsi256_si128(tight));
  store16(out + 12, _mm256_extracti128_si256(tight, 1));
}

template <int Pairs>
FASTLOAD_TARGET_AVX2 void blend_columns(const std::int16_t* row, const std::int32_t* offsets,
                                        const std::int16_t* spread, int pairs, std::size_t blocks,
                                        std::uint8_t* out, bool planar, std::size_t plane_stride) {
  const int count = Pairs == 0 ? pairs : Pairs;
  for (std::size_t i = 0; i < blocks; ++i) {
    const __m256i block =
        blend_block<Pairs>(row, offsets + 8 * i, spread + i * static_cast<std::size_t>(count * 64), pairs);
    if (planar) {
      store_planar(block, out + 8 * i, plane_stride);
    } else {
      store_interleaved(block, out + 24 * i);
    }
  }
}

// Eight floats to bfloat16, half to even; the results are in the low halves of the 32-bit lanes.
FASTLOAD_TARGET_AVX2 inline __m256i round_bfloat16(__m256 values) {
  const __m256i bits = _mm256_castps_si256(values);
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  return _mm256_srli_epi32(_mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7FFF)), odd), 16);
}

template <ElementType Type>
FASTLOAD_TARGET_AVX2 void convert(const std::uint8_t* in, std::size_t count, const float* a, const float* b,
                                  std::byte* out) {
  const __m256 scale[3] = {_mm256_loadu_ps(a), _mm256_loadu_ps(a + 8), _mm256_loadu_ps(a + 16)};
  const __m256 offset[3] = {_mm256_loadu_ps(b), _mm256_loadu_ps(b + 8), _mm256_loadu_ps(b + 16)};
  constexpr std::size_t bytes = Type == ElementType::float32 ? 4 : 2;
  std::size_t i = 0;
  for (; i + 24 <= count; i += 24) {
    for (std::size_t part = 0; part < 3; ++part) {
      const std::size_t at = i + 8 * part;
      const __m128i eight = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(in + at));
      const __m256 x = _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(eight));
      const __m256 y = _mm256_add_ps(_mm256_mul_ps(x, scale[part]), offset[part]);
      if constexpr (Type == ElementType::float32) {
        _mm256_storeu_ps(reinterpret_cast<float*>(out + bytes * at), y);
      } else if constexpr (Type == ElementType::float16) {
        store16(out + bytes * at, _mm256_cvtps_ph(y, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
      } else {
        const __m256i wide = round_bfloat16(y);
        store16(out + bytes * at,
                _mm_packus_epi32(_mm256_castsi256_si128(wide), _mm256_extracti128_si256(wide, 1)));
      }
    }
  }
  convert_plain(in + i, count - i, a, b, Type, out + bytes * i);
}

}  // namespace

FASTLOAD_TARGET_AVX2 void blend_rows_avx2(const std::uint8_t* const* rows, const std::int32_t* pairs,
                                          int pair_count, std::size_t count, std::int16_t* out) {
  const __m256i zero = _mm256_setzero_si256();
  constexpr int shift = kFastBits - kMiddleBits;
  if (count < 32) return blend_rows_plain(rows, pairs, pair_count, count, out);
  // The last step overlaps the one before, since pixels in a file end where they end.
  for (std::size_t i = 0; i < count; i = i + 32 < count ? std::min(i + 32, count - 32) : count) {
    __m256i sum0 = _mm256_set1_epi32(1 << (shift - 1));
    __m256i sum1 = sum0, sum2 = sum0, sum3 = sum0;
    for (int p = 0; p < pair_count; ++p) {
      const __m256i weights = _mm256_set1_epi32(pairs[p]);
      const __m256i first = load32(rows[2 * p] + i), second = load32(rows[2 * p + 1] + i);
      const __m256i low = _mm256_unpacklo_epi8(first, second), high = _mm256_unpackhi_epi8(first, second);
      sum0 = _mm256_add_epi32(sum0, _mm256_madd_epi16(_mm256_unpacklo_epi8(low, zero), weights));
      sum1 = _mm256_add_epi32(sum1, _mm256_madd_epi16(_mm256_unpackhi_epi8(low, zero), weights));
      sum2 = _mm256_add_epi32(sum2, _mm256_madd_epi16(_mm256_unpacklo_epi8(high, zero), weights));
      sum3 = _mm256_add_epi32(sum3, _mm256_madd_epi16(_mm256_unpackhi_epi8(high, zero), weights));
    }
    // Lane 0 holds columns 0..15, lane 1 columns 16..31.
    const __m256i a = _mm256_packs_epi32(_mm256_srai_epi32(sum0, shift), _mm256_srai_epi32(sum1, shift));
    const __m256i b = _mm256_packs_epi32(_mm256_srai_epi32(sum2, shift), _mm256_srai_epi32(sum3, shift));
    store32(out + i, _mm256_permute2x128_si256(a, b, 0x20));
    store32(out + i + 16, _mm256_permute2x128_si256(a, b, 0x31));
  }
}

void blend_columns_avx2(const std::int16_t* row, const std::int32_t* offsets, const std::int16_t* spread,
                        int pairs, std::size_t blocks, std::uint8_t* out, bool planar,
                        std::size_t plane_stride) {
  switch (pairs) {
    case 1:
      return blend_columns<1>(row, offsets, spread, pairs, blocks, out, planar, plane_stride);
    case 2:
      return blend_columns<2>(row, offsets, spread, pairs, blocks, out, planar, plane_stride);
    case 3:
      return blend_columns<3>(row, offsets, spread, pairs, blocks, out, planar, plane_stride);
    default:
      return blend_columns<0>(row, offsets, spread, pairs, blocks, out, planar, plane_stride);
  }
}

FASTLOAD_TARGET_AVX2 void deinterleave_avx2(const std::uint8_t* in, std::size_t pixels, std::uint8_t* out,
                                            std::size_t plane_stride) {
  const __m256i spread =
      _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 1, 2, -1, 3, 4, 5, -1, 6, 7, 8, -1, 9, 10, 11, -1));
  std::size_t i = 0;
  // Each step reads 28 bytes for 24: stop where that would pass the end.
  for (; i + 10 <= pixels; i += 8) {
    const __m256i both =
        _mm256_inserti128_si256(_mm256_castsi128_si256(load16(in + 3 * i)), load16(in + 3 * i + 12), 1);
    store_planar(_mm256_shuffle_epi8(both, spread), out + i, plane_stride);
  }
  deinterleave_plain(in + 3 * i, pixels - i, out + i, plane_stride);
}

void convert_avx2(const std::uint8_t* in, std::size_t count, const float* a, const float* b, ElementType type,
                  std::byte* out) {
  switch (type) {
    case ElementType::float16:
      return convert<ElementType::float16>(in, count, a, b, out);
    case ElementType::bfloat16:
      return convert<ElementType::bfloat16>(in, count, a, b, out);
    default:
      return convert<ElementType::float32>(in, count, a, b, out);
  }
}

#else  // never called: simd() is plain

void blend_rows_avx2(const std::uint8_t* const* rows, const std::int32_t* pairs, int pair_count,
                     std::size_t count, std::int16_t* out) {
  blend_rows_plain(rows, pairs, pair_count, count, out);
}
void blend_columns_avx2(const std::int16_t*, const std::int32_t*, const std::int16_t*, int, std::size_t,
                        std::uint8_t*, bool, std::size_t) {}
void deinterleave_avx2(const std::uint8_t* in, std::size_t pixels, std::uint8_t* out,
                       std::size_t plane_stride) {
  deinterleave_plain(in, pixels, out, plane_stride);
}
void convert_avx2(const std::uint8_t* in, std::size_t count, const float* a, const float* b, ElementType type,
                  std::byte* out) {
  convert_plain(in, count, a, b, type, out);
}

#endif

}  // namespace fastload::image

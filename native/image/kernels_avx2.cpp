#include "image/kernels.h"

#if FASTLOAD_X86
#include <cpuid.h>
#include <immintrin.h>

#include <algorithm>

namespace fastload::image {
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

FASTLOAD_TARGET_AVX2 void blend_rows(const std::uint8_t* const* rows, const std::int32_t* pairs,
                                     int pair_count, std::size_t count, std::int16_t* out) {
  const __m256i zero = _mm256_setzero_si256();
  constexpr int shift = kFastBits - kMiddleBits;
  if (count < 32) return find_plain()->blend_rows(rows, pairs, pair_count, count, out);
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

// The sums of two outputs, one in each lane: r g b 0 for three channels, four parts of it for one.
template <int Channels, bool Wide, int Steps>  // Steps 0: as many as `steps` says
FASTLOAD_TARGET_AVX2 inline __m256i weigh(const std::int16_t* low, const std::int16_t* high,
                                          const std::int16_t* weights, int steps) {
  // Two pixels (r0 g0 b0 r1 g1 b1 . .) in the order that multiply-add wants: r0 r1 g0 g1 b0 b1 - -.
  const __m256i order =
      _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 1, 6, 7, 2, 3, 8, 9, 4, 5, 10, 11, -1, -1, -1, -1));
  const int count = Steps == 0 ? steps : Steps;
  constexpr int stride = Channels == 3 ? 6 : 8, parts = Wide ? 2 : 1;
  constexpr int rounding = 1 << ((Wide ? kWideBits : kFastBits + kMiddleBits) - 1);
  __m256i sum = Channels == 3 ? _mm256_set1_epi32(rounding)
                              : _mm256_broadcastsi128_si256(_mm_setr_epi32(rounding, 0, 0, 0));
  __m256i coarse = _mm256_setzero_si256();
  for (int step = 0; step < count; ++step, weights += 16 * parts) {
    __m256i both = _mm256_inserti128_si256(_mm256_castsi128_si256(load16(low + stride * step)),
                                           load16(high + stride * step), 1);
    if constexpr (Channels == 3) both = _mm256_shuffle_epi8(both, order);
    if constexpr (Wide) coarse = _mm256_add_epi32(coarse, _mm256_madd_epi16(both, load32(weights)));
    sum = _mm256_add_epi32(sum, _mm256_madd_epi16(both, load32(weights + 16 * (parts - 1))));
  }
  return Wide ? _mm256_add_epi32(_mm256_slli_epi32(coarse, kFineBits), sum) : sum;
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

// Eight outputs of three channels, r g b 0 each; those of lane 0 are 0..3, those of lane 1 are 4..7.
template <int Shift>
FASTLOAD_TARGET_AVX2 inline __m256i pack_pixels(const __m256i* sums) {
  const __m256i low =
      _mm256_packs_epi32(_mm256_srai_epi32(sums[0], Shift), _mm256_srai_epi32(sums[1], Shift));
  const __m256i high =
      _mm256_packs_epi32(_mm256_srai_epi32(sums[2], Shift), _mm256_srai_epi32(sums[3], Shift));
  return _mm256_packus_epi16(low, high);
}

// Eight outputs of one channel.
template <int Shift>
FASTLOAD_TARGET_AVX2 inline void store_values(const __m256i* sums, std::uint8_t* out) {
  const __m256i total =
      _mm256_hadd_epi32(_mm256_hadd_epi32(sums[0], sums[1]), _mm256_hadd_epi32(sums[2], sums[3]));
  const __m256i values = _mm256_srai_epi32(total, Shift);
  const __m128i words = _mm_packs_epi32(_mm256_castsi256_si128(values), _mm256_extracti128_si256(values, 1));
  _mm_storel_epi64(reinterpret_cast<__m128i*>(out), _mm_packus_epi16(words, words));
}

template <int Channels, bool Wide, int Steps>
FASTLOAD_TARGET_AVX2 void blend_blocks(const std::int16_t* row, const Columns& columns, std::uint8_t* out,
                                       const RowLayout& layout) {
  constexpr int shift = Wide ? kWideBits : kFastBits + kMiddleBits;
  const int steps = Steps == 0 ? columns.steps : Steps;
  const std::size_t stride = static_cast<std::size_t>(steps) * (Wide ? 32 : 16);
  const std::int32_t* offsets = columns.offsets;
  const std::int16_t* weights = columns.weights;
  for (std::size_t i = 0; i < columns.blocks; ++i, offsets += 8) {
    __m256i sums[4];
    for (int j = 0; j < 4; ++j, weights += stride)
      sums[j] = weigh<Channels, Wide, Steps>(row + offsets[j], row + offsets[j + 4], weights, steps);
    if constexpr (Channels == 1) {
      store_values<shift>(sums, out + 8 * i);
    } else if (layout.planar) {
      store_planar(pack_pixels<shift>(sums), out + 8 * i, layout.plane_stride);
    } else {
      store_interleaved(pack_pixels<shift>(sums), out + 24 * i);
    }
  }
}

// With the common numbers of steps known, so that their loops are unrolled.
template <int Channels, bool Wide>
void blend_columns_of(const std::int16_t* row, const Columns& columns, std::uint8_t* out,
                      const RowLayout& layout) {
  switch (columns.steps) {
    case 1:
      return blend_blocks<Channels, Wide, 1>(row, columns, out, layout);
    case 2:
      return blend_blocks<Channels, Wide, 2>(row, columns, out, layout);
    case 3:
      return blend_blocks<Channels, Wide, 3>(row, columns, out, layout);
    default:
      return blend_blocks<Channels, Wide, 0>(row, columns, out, layout);
  }
}

void blend_columns(const std::int16_t* row, const Columns& columns, std::uint8_t* out,
                   const RowLayout& layout) {
  if (columns.channels == 3)
    return columns.wide ? blend_columns_of<3, true>(row, columns, out, layout)
                        : blend_columns_of<3, false>(row, columns, out, layout);
  return columns.wide ? blend_columns_of<1, true>(row, columns, out, layout)
                      : blend_columns_of<1, false>(row, columns, out, layout);
}

FASTLOAD_TARGET_AVX2 void deinterleave(const std::uint8_t* in, std::size_t pixels, std::uint8_t* out,
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
  find_plain()->deinterleave(in + 3 * i, pixels - i, out + i, plane_stride);
}

// Eight floats to bfloat16, half to even; the results are in the low halves of the 32-bit lanes.
FASTLOAD_TARGET_AVX2 inline __m256i round_bfloat16(__m256 values) {
  const __m256i bits = _mm256_castps_si256(values);
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  return _mm256_srli_epi32(_mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7FFF)), odd), 16);
}

template <ElementType Type>
FASTLOAD_TARGET_AVX2 void convert_to(const std::uint8_t* in, std::size_t count, const float* a,
                                     const float* b, std::byte* out) {
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
  find_plain()->convert(in + i, count - i, a, b, Type, out + bytes * i);
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

FASTLOAD_TARGET_AVX2 inline __m256 eight(const std::uint8_t* values) {
  return _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(values))));
}

FASTLOAD_TARGET_AVX2 void mix(std::uint8_t* data, const std::uint8_t* seconds, std::size_t count, float own,
                              float other) {
  const __m256 first = _mm256_set1_ps(own), second = _mm256_set1_ps(other), most = _mm256_set1_ps(255.0f);
  const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
  std::size_t i = 0;
  for (; i + 32 <= count; i += 32) {
    __m256i values[4];
    for (std::size_t part = 0; part < 4; ++part) {
      const std::size_t at = i + 8 * part;
      const __m256 added = seconds == nullptr ? second : _mm256_mul_ps(eight(seconds + at), second);
      const __m256 sum = _mm256_add_ps(_mm256_mul_ps(eight(data + at), first), added);
      // Packing clips to 0 and 255 what fits 32 bits: too large values must not get there.
      values[part] = _mm256_cvttps_epi32(_mm256_max_ps(_mm256_min_ps(sum, most), _mm256_setzero_ps()));
    }
    const __m256i packed = _mm256_packus_epi16(_mm256_packs_epi32(values[0], values[1]),
                                               _mm256_packs_epi32(values[2], values[3]));
    store32(data + i, _mm256_permutevar8x32_epi32(packed, order));
  }
  find_plain()->mix(data + i, seconds == nullptr ? nullptr : seconds + i, count - i, own, other);
}

// Not every compiler's __builtin_cpu_supports knows F16C.
bool has_f16c() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & bit_F16C) != 0;
}

}  // namespace

const Kernels* find_avx2() {
  static constexpr Kernels table = {Simd::avx2, blend_rows, blend_columns, deinterleave, convert, mix};
  __builtin_cpu_init();
  return __builtin_cpu_supports("avx2") && has_f16c() ? &table : nullptr;
}

}  // namespace fastload::image

#else

const fastload::image::Kernels* fastload::image::find_avx2() { return nullptr; }

#endif

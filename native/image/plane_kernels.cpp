#include "image/plane_kernels.h"

#include <algorithm>
#include <cstring>

#include "image/kernels.h"
#include "image/simd.h"

#if FASTLOAD_X86
#include <immintrin.h>
#endif

namespace fastload::image {
namespace {

// What the passes drop of their sums' fractional bits.
constexpr int kFirstShift = kFastBits - kMiddleBits, kSecondShift = kFastBits + kMiddleBits - kSampleBits;
constexpr int kGray = 128 << kSampleBits;
constexpr int kHalf = 1 << (kSampleBits - 1);

// What JFIF's factors 1.402, 0.344136, 0.714136 and 1.772 are over, or short of, 1, 0, 0 and 2, times 2^15.
constexpr int kRedOfCr = 13173, kGreenOfCb = 11277, kGreenOfCr = 23401, kBlueOfCb = 7471;

std::int32_t scaled(std::int32_t value, std::int32_t factor) { return (value * factor + 0x4000) >> 15; }

std::uint8_t to_byte(std::int32_t sample) {
  return static_cast<std::uint8_t>(std::clamp((sample + kHalf) >> kSampleBits, 0, 255));
}

void blend_plane_plain(const std::uint8_t* row, const Axis& axis, const Spread&, std::int16_t* out) {
  const std::int32_t* weights = axis.weights.data();
  for (std::int64_t i = 0; i < axis.count; ++i, weights += axis.taps) {
    const std::int64_t from = axis.first.data()[i];
    // Weights past the end are zero.
    const auto used = static_cast<int>(std::min<std::int64_t>(axis.taps, axis.high - from));
    const std::uint8_t* in = row + (from - axis.low);
    std::int32_t sum = 1 << (kFirstShift - 1);
    for (int t = 0; t < used; ++t) sum += weights[t] * in[t];
    out[i] = static_cast<std::int16_t>(sum >> kFirstShift);
  }
}

void blend_samples_plain(const std::int16_t* const* rows, const std::int32_t* pairs, int pair_count,
                         std::size_t count, std::int16_t* out) {
  for (std::size_t i = 0; i < count; ++i) {
    std::int32_t sum = 1 << (kSecondShift - 1);
    for (int p = 0; p < pair_count; ++p) {
      const auto low = static_cast<std::int16_t>(pairs[p] & 0xFFFF);
      const auto high = static_cast<std::int16_t>(pairs[p] >> 16);
      sum += low * rows[2 * p][i] + high * rows[2 * p + 1][i];
    }
    out[i] = static_cast<std::int16_t>(sum >> kSecondShift);
  }
}

void colour_planes_plain(const std::int16_t* const* in, std::size_t count, std::uint8_t* out,
                         std::size_t plane_stride) {
  for (std::size_t i = 0; i < count; ++i) {
    const std::int32_t luma = in[0][i], cb = in[1][i] - kGray, cr = in[2][i] - kGray;
    out[i] = to_byte(luma + cr + scaled(cr, kRedOfCr));
    out[i + plane_stride] = to_byte(luma - scaled(cb, kGreenOfCb) - scaled(cr, kGreenOfCr));
    out[i + 2 * plane_stride] = to_byte(luma + 2 * cb - scaled(cb, kBlueOfCb));
  }
}

void round_plane_plain(const std::int16_t* in, std::size_t count, std::uint8_t* out) {
  for (std::size_t i = 0; i < count; ++i) out[i] = to_byte(in[i]);
}

void interleave_plain(const std::uint8_t* in, std::size_t plane_stride, std::size_t count,
                      std::uint8_t* out) {
  for (std::size_t i = 0; i < count; ++i)
    for (std::size_t c = 0; c < 3; ++c) out[3 * i + c] = in[c * plane_stride + i];
}

#if FASTLOAD_X86

FASTLOAD_TARGET_AVX2 inline __m256i load32(const void* p) {
  return _mm256_loadu_si256(static_cast<const __m256i*>(p));
}

FASTLOAD_TARGET_AVX2 inline __m128i load16(const void* p) {
  return _mm_loadu_si128(static_cast<const __m128i*>(p));
}
FASTLOAD_TARGET_AVX2 inline void store16(void* p, __m128i value) {
  _mm_storeu_si128(static_cast<__m128i*>(p), value);
}

// Byte k of 48 interleaved ones is channel k mod 3 of pixel k div 3: which bytes of each plane go into
// each 16.
struct Places {
  alignas(16) std::int8_t bytes[3][3][16];
};
constexpr Places kPlaces = [] {
  Places places{};
  for (int k = 0; k < 48; ++k)
    for (int c = 0; c < 3; ++c)
      places.bytes[k / 16][c][k % 16] = static_cast<std::int8_t>(k % 3 == c ? k / 3 : -1);
  return places;
}();

// 16 samples of each to bytes: those of `a` in the low lane, those of `b` in the high one.
FASTLOAD_TARGET_AVX2 inline __m256i to_bytes(__m256i a, __m256i b) {
  const __m256i half = _mm256_set1_epi16(kHalf);
  a = _mm256_srai_epi16(_mm256_add_epi16(a, half), kSampleBits);
  b = _mm256_srai_epi16(_mm256_add_epi16(b, half), kSampleBits);
  return _mm256_permute4x64_epi64(_mm256_packus_epi16(a, b), 0xD8);
}

template <int Pairs>  // 0: as many as `spread` says
FASTLOAD_TARGET_AVX2 void blend_plane(const std::uint8_t* row, const Spread& spread, std::int16_t* out) {
  const std::int32_t* offsets = spread.offsets.data();
  const std::int8_t* places = spread.places.data();
  const std::int16_t* weights = spread.weights.data();
  const int pairs = Pairs == 0 ? spread.pairs : Pairs;
  for (std::size_t i = 0; i < spread.blocks; ++i, offsets += 2, out += 8) {
    const __m256i in = _mm256_inserti128_si256(_mm256_castsi128_si256(load16(row + offsets[0])),
                                               load16(row + offsets[1]), 1);
    __m256i sum = _mm256_set1_epi32(1 << (kFirstShift - 1));
    for (int p = 0; p < pairs; ++p, places += 32, weights += 16)
      sum =
          _mm256_add_epi32(sum, _mm256_madd_epi16(_mm256_shuffle_epi8(in, load32(places)), load32(weights)));
    sum = _mm256_srai_epi32(sum, kFirstShift);
    store16(out, _mm_packs_epi32(_mm256_castsi256_si128(sum), _mm256_extracti128_si256(sum, 1)));
  }
}

void blend_plane_avx2(const std::uint8_t* row, const Axis&, const Spread& spread, std::int16_t* out) {
  switch (spread.pairs) {
    case 1:
      return blend_plane<1>(row, spread, out);
    case 2:
      return blend_plane<2>(row, spread, out);
    case 3:
      return blend_plane<3>(row, spread, out);
    default:
      return blend_plane<0>(row, spread, out);
  }
}

FASTLOAD_TARGET_AVX2 void blend_samples_avx2(const std::int16_t* const* rows, const std::int32_t* pairs,
                                             int pair_count, std::size_t count, std::int16_t* out) {
  for (std::size_t i = 0; i < count; i += 16) {
    __m256i low = _mm256_set1_epi32(1 << (kSecondShift - 1)), high = low;
    for (int p = 0; p < pair_count; ++p) {
      const __m256i weights = _mm256_set1_epi32(pairs[p]);
      const __m256i first = load32(rows[2 * p] + i), second = load32(rows[2 * p + 1] + i);
      low = _mm256_add_epi32(low, _mm256_madd_epi16(_mm256_unpacklo_epi16(first, second), weights));
      high = _mm256_add_epi32(high, _mm256_madd_epi16(_mm256_unpackhi_epi16(first, second), weights));
    }
    // Unpacking and packing keep to lanes alike.
    const __m256i sums =
        _mm256_packs_epi32(_mm256_srai_epi32(low, kSecondShift), _mm256_srai_epi32(high, kSecondShift));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + i), sums);
  }
}

FASTLOAD_TARGET_AVX2 void colour_planes_avx2(const std::int16_t* const* in, std::size_t count,
                                             std::uint8_t* out, std::size_t plane_stride) {
  const __m256i gray = _mm256_set1_epi16(kGray);
  const __m256i red_of_cr = _mm256_set1_epi16(kRedOfCr), green_of_cb = _mm256_set1_epi16(kGreenOfCb),
                green_of_cr = _mm256_set1_epi16(kGreenOfCr), blue_of_cb = _mm256_set1_epi16(kBlueOfCb);
  for (std::size_t i = 0; i < count; i += 16) {
    const __m256i luma = load32(in[0] + i);
    const __m256i cb = _mm256_sub_epi16(load32(in[1] + i), gray);
    const __m256i cr = _mm256_sub_epi16(load32(in[2] + i), gray);
    const __m256i red = _mm256_add_epi16(luma, _mm256_add_epi16(cr, _mm256_mulhrs_epi16(cr, red_of_cr)));
    const __m256i green = _mm256_sub_epi16(_mm256_sub_epi16(luma, _mm256_mulhrs_epi16(cb, green_of_cb)),
                                           _mm256_mulhrs_epi16(cr, green_of_cr));
    const __m256i blue = _mm256_sub_epi16(_mm256_add_epi16(luma, _mm256_add_epi16(cb, cb)),
                                          _mm256_mulhrs_epi16(cb, blue_of_cb));
    const __m256i both = to_bytes(red, green);
    store16(out + i, _mm256_castsi256_si128(both));
    store16(out + plane_stride + i, _mm256_extracti128_si256(both, 1));
    store16(out + 2 * plane_stride + i, _mm256_castsi256_si128(to_bytes(blue, blue)));
  }
}

FASTLOAD_TARGET_AVX2 void round_plane_avx2(const std::int16_t* in, std::size_t count, std::uint8_t* out) {
  for (std::size_t i = 0; i < count; i += 16) {
    const __m256i samples = load32(in + i);
    store16(out + i, _mm256_castsi256_si128(to_bytes(samples, samples)));
  }
}

FASTLOAD_TARGET_AVX2 void interleave_avx2(const std::uint8_t* in, std::size_t plane_stride, std::size_t count,
                                          std::uint8_t* out) {
  std::size_t i = 0;
  for (; i + 16 <= count; i += 16) {
    __m128i planes[3];
    for (std::size_t c = 0; c < 3; ++c) planes[c] = load16(in + c * plane_stride + i);
    for (std::size_t part = 0; part < 3; ++part) {
      const auto* order = reinterpret_cast<const __m128i*>(kPlaces.bytes[part]);
      const __m128i red = _mm_shuffle_epi8(planes[0], order[0]),
                    green = _mm_shuffle_epi8(planes[1], order[1]),
                    blue = _mm_shuffle_epi8(planes[2], order[2]);
      store16(out + 3 * i + 16 * part, _mm_or_si128(_mm_or_si128(red, green), blue));
    }
  }
  interleave_plain(in + i, plane_stride, count - i, out + 3 * i);
}

#endif

}  // namespace

void Spread::plan(const Axis& axis) {
  constexpr std::int64_t kLane = 4;
  pairs = (axis.taps + 1) / 2;
  blocks = static_cast<std::size_t>((axis.count + 7) / 8);
  const auto width = static_cast<std::size_t>(pairs);
  std::int32_t* offset = offsets.reserve(2 * blocks);
  std::int8_t* place = places.reserve(32 * blocks * width);
  std::int16_t* weight = weights.reserve(16 * blocks * width);
  std::memset(place, -1, 32 * blocks * width);
  std::memset(weight, 0, 2 * 16 * blocks * width);
  const std::int32_t* first = axis.first.data();
  for (std::int64_t begin = 0; begin < static_cast<std::int64_t>(8 * blocks); begin += kLane, ++offset) {
    const std::int64_t end = std::min(begin + kLane, axis.count);
    *offset = 0;
    if (begin >= end) continue;
    const std::int32_t low = std::min(first[begin], first[end - 1]);  // mirrored weights go down
    *offset = low - static_cast<std::int32_t>(axis.low);
    const std::size_t lane =
        static_cast<std::size_t>(begin / 8) * width * 2 + static_cast<std::size_t>(begin % 8 / kLane);
    for (std::int64_t i = begin; i < end; ++i) {
      const std::int32_t* values = axis.weights.data() + i * axis.taps;
      std::size_t at = 8 * lane + 2 * static_cast<std::size_t>(i - begin);
      // A tap of weight zero may be past the 16 samples: it may take any of them.
      for (int t = 0; t < axis.taps; ++t) {
        weight[at] = static_cast<std::int16_t>(values[t]);
        place[2 * at] = static_cast<std::int8_t>((first[i] - low + t) & 15);
        at += t % 2 == 0 ? 1 : 15;
      }
    }
  }
}

const PlaneKernels& plane_kernels() {
  static constexpr PlaneKernels plain = {blend_plane_plain,   false,
                                         blend_samples_plain, colour_planes_plain,
                                         round_plane_plain,   interleave_plain};
#if FASTLOAD_X86
  static constexpr PlaneKernels avx2 = {
      blend_plane_avx2, true, blend_samples_avx2, colour_planes_avx2, round_plane_avx2, interleave_avx2};
  if (simd() == Simd::avx2 || simd() == Simd::avx512) return avx2;
#endif
  return plain;
}

}  // namespace fastload::image

#include "image/kernels.h"

#if defined(__aarch64__)
#include <arm_neon.h>

#include <algorithm>

namespace fastload::image {
namespace {

void blend_rows(const std::uint8_t* const* rows, const std::int32_t* pairs, int pair_count, std::size_t count,
                std::int16_t* out) {
  constexpr int shift = kFastBits - kMiddleBits;
  if (count < 16) return find_plain()->blend_rows(rows, pairs, pair_count, count, out);
  // The last step overlaps the one before, since pixels in a file end where they end.
  for (std::size_t i = 0; i < count; i = i + 16 < count ? std::min(i + 16, count - 16) : count) {
    uint32x4_t sums[4];
    for (auto& sum : sums) sum = vdupq_n_u32(1u << (shift - 1));
    for (int k = 0; k < 2 * pair_count; ++k) {
      const auto weight = static_cast<std::uint16_t>(static_cast<std::uint32_t>(pairs[k / 2]) >> k % 2 * 16);
      const uint8x16_t values = vld1q_u8(rows[k] + i);
      const uint16x8_t low = vmovl_u8(vget_low_u8(values)), high = vmovl_u8(vget_high_u8(values));
      sums[0] = vmlal_n_u16(sums[0], vget_low_u16(low), weight);
      sums[1] = vmlal_n_u16(sums[1], vget_high_u16(low), weight);
      sums[2] = vmlal_n_u16(sums[2], vget_low_u16(high), weight);
      sums[3] = vmlal_n_u16(sums[3], vget_high_u16(high), weight);
    }
    for (std::size_t part = 0; part < 4; ++part)
      vst1_s16(out + i + 4 * part, vreinterpret_s16_u16(vshrn_n_u32(sums[part], shift)));
  }
}

// The sum of one output: r g b 0 for three channels, four parts of it for one.
template <int Channels, bool Wide>
inline int32x4_t weigh(const std::int16_t* values, const std::int16_t* weights, int steps) {
  int32x4_t sum = vdupq_n_s32(0), coarse = sum;
  for (int step = 0; step < steps; ++step, weights += Wide ? 32 : 16) {
    const std::int16_t* fine = weights + (Wide ? 16 : 0);
    if constexpr (Channels == 3) {
      const int16x4_t first = vld1_s16(values), second = vld1_s16(values + 3);
      if constexpr (Wide) {
        coarse = vmlal_n_s16(coarse, first, weights[0]);
        coarse = vmlal_n_s16(coarse, second, weights[1]);
      }
      sum = vmlal_n_s16(sum, first, fine[0]);
      sum = vmlal_n_s16(sum, second, fine[1]);
      values += 6;
    } else {
      const int16x8_t eight = vld1q_s16(values), by = vld1q_s16(fine);
      if constexpr (Wide) {
        const int16x8_t most = vld1q_s16(weights);
        coarse = vmlal_s16(coarse, vget_low_s16(eight), vget_low_s16(most));
        coarse = vmlal_high_s16(coarse, eight, most);
      }
      sum = vmlal_s16(sum, vget_low_s16(eight), vget_low_s16(by));
      sum = vmlal_high_s16(sum, eight, by);
      values += 8;
    }
  }
  return Wide ? vaddq_s32(vshlq_n_s32(coarse, kFineBits), sum) : sum;
}

// Two vectors of sums, rounded, shifted and clipped to bytes.
template <bool Wide>
inline uint8x8_t narrow(int32x4_t first, int32x4_t second) {
  constexpr int shift = Wide ? kWideBits : kFastBits + kMiddleBits;
  return vqmovun_s16(
      vcombine_s16(vqmovn_s32(vrshrq_n_s32(first, shift)), vqmovn_s32(vrshrq_n_s32(second, shift))));
}

// Eight outputs r g b 0, written as three planes or as pixels.
inline void store_pixels(uint8x16_t first, uint8x16_t second, std::uint8_t* out, const RowLayout& layout,
                         std::size_t block) {
  const uint8x16_t even = vuzp1q_u8(first, second), odd = vuzp2q_u8(first, second);  // r b r b.., g 0 g 0..
  const uint8x8x3_t planes = {{vuzp1_u8(vget_low_u8(even), vget_high_u8(even)),
                               vuzp1_u8(vget_low_u8(odd), vget_high_u8(odd)),
                               vuzp2_u8(vget_low_u8(even), vget_high_u8(even))}};
  if (!layout.planar) return vst3_u8(out + 24 * block, planes);
  for (std::size_t c = 0; c < 3; ++c) vst1_u8(out + c * layout.plane_stride + 8 * block, planes.val[c]);
}

template <int Channels, bool Wide>
void blend_blocks(const std::int16_t* row, const Columns& columns, std::uint8_t* out,
                  const RowLayout& layout) {
  const std::size_t stride = static_cast<std::size_t>(columns.steps) * (Wide ? 32 : 16);
  const std::int32_t* offsets = columns.offsets;
  const std::int16_t* weights = columns.weights;
  for (std::size_t i = 0; i < columns.blocks; ++i, offsets += 8, weights += 4 * stride) {
    int32x4_t sums[8];
    for (std::size_t j = 0; j < 8; ++j)
      sums[j] = weigh<Channels, Wide>(row + offsets[j], weights + j % 4 * stride + j / 4 * 8, columns.steps);
    if constexpr (Channels == 3) {
      store_pixels(vcombine_u8(narrow<Wide>(sums[0], sums[1]), narrow<Wide>(sums[2], sums[3])),
                   vcombine_u8(narrow<Wide>(sums[4], sums[5]), narrow<Wide>(sums[6], sums[7])), out, layout,
                   i);
    } else {
      const int32x4_t low = vpaddq_s32(vpaddq_s32(sums[0], sums[1]), vpaddq_s32(sums[2], sums[3]));
      const int32x4_t high = vpaddq_s32(vpaddq_s32(sums[4], sums[5]), vpaddq_s32(sums[6], sums[7]));
      vst1_u8(out + 8 * i, narrow<Wide>(low, high));
    }
  }
}

void blend_columns(const std::int16_t* row, const Columns& columns, std::uint8_t* out,
                   const RowLayout& layout) {
  if (columns.channels == 3)
    return columns.wide ? blend_blocks<3, true>(row, columns, out, layout)
                        : blend_blocks<3, false>(row, columns, out, layout);
  return columns.wide ? blend_blocks<1, true>(row, columns, out, layout)
                      : blend_blocks<1, false>(row, columns, out, layout);
}

void deinterleave(const std::uint8_t* in, std::size_t pixels, std::uint8_t* out, std::size_t plane_stride) {
  std::size_t i = 0;
  for (; i + 16 <= pixels; i += 16) {
    const uint8x16x3_t planes = vld3q_u8(in + 3 * i);
    for (std::size_t c = 0; c < 3; ++c) vst1q_u8(out + c * plane_stride + i, planes.val[c]);
  }
  find_plain()->deinterleave(in + 3 * i, pixels - i, out + i, plane_stride);
}

// Eight values as float.
struct Floats {
  explicit Floats(const std::uint8_t* values) {
    const uint16x8_t wide = vmovl_u8(vld1_u8(values));
    low = vcvtq_f32_u32(vmovl_u16(vget_low_u16(wide)));
    high = vcvtq_f32_u32(vmovl_u16(vget_high_u16(wide)));
  }
  float32x4_t low;
  float32x4_t high;
};

// Four floats to bfloat16, half to even.
inline uint16x4_t round_bfloat16(float32x4_t values) {
  const uint32x4_t bits = vreinterpretq_u32_f32(values);
  const uint32x4_t odd = vandq_u32(vshrq_n_u32(bits, 16), vdupq_n_u32(1));
  return vshrn_n_u32(vaddq_u32(vaddq_u32(bits, vdupq_n_u32(0x7FFF)), odd), 16);
}

template <ElementType Type>
inline void store_floats(float32x4_t values, std::byte* out) {
  if constexpr (Type == ElementType::float32) {
    vst1q_u8(reinterpret_cast<std::uint8_t*>(out), vreinterpretq_u8_f32(values));
  } else if constexpr (Type == ElementType::float16) {
    vst1_u8(reinterpret_cast<std::uint8_t*>(out), vreinterpret_u8_f16(vcvt_f16_f32(values)));
  } else {
    vst1_u8(reinterpret_cast<std::uint8_t*>(out), vreinterpret_u8_u16(round_bfloat16(values)));
  }
}

template <ElementType Type>
void convert_to(const std::uint8_t* in, std::size_t count, const float* a, const float* b, std::byte* out) {
  constexpr std::size_t bytes = Type == ElementType::float32 ? 4 : 2;
  std::size_t i = 0;
  for (; i + 24 <= count; i += 24) {
    for (std::size_t part = 0; part < 24; part += 8) {
      const Floats x(in + i + part);
      const float32x4_t low = vaddq_f32(vmulq_f32(x.low, vld1q_f32(a + part)), vld1q_f32(b + part));
      const float32x4_t high = vaddq_f32(vmulq_f32(x.high, vld1q_f32(a + part + 4)), vld1q_f32(b + part + 4));
      store_floats<Type>(low, out + bytes * (i + part));
      store_floats<Type>(high, out + bytes * (i + part + 4));
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

void mix(std::uint8_t* data, const std::uint8_t* seconds, std::size_t count, float own, float other) {
  const float32x4_t first = vdupq_n_f32(own), second = vdupq_n_f32(other);
  std::size_t i = 0;
  for (; i + 8 <= count; i += 8) {
    const Floats x(data + i);
    float32x4_t low = second, high = second;
    if (seconds != nullptr) {
      const Floats y(seconds + i);
      low = vmulq_f32(y.low, second);
      high = vmulq_f32(y.high, second);
    }
    low = vaddq_f32(vmulq_f32(x.low, first), low);
    high = vaddq_f32(vmulq_f32(x.high, first), high);
    // Converting and narrowing clip: what is negative becomes 0, what is too large 255.
    const uint16x8_t values = vcombine_u16(vqmovn_u32(vcvtq_u32_f32(low)), vqmovn_u32(vcvtq_u32_f32(high)));
    vst1_u8(data + i, vqmovn_u16(values));
  }
  find_plain()->mix(data + i, seconds == nullptr ? nullptr : seconds + i, count - i, own, other);
}

}  // namespace

const Kernels* find_neon() {
  static constexpr Kernels table = {Simd::neon, blend_rows, blend_columns, deinterleave, convert, mix};
  return &table;
}

}  // namespace fastload::image

#else

const fastload::image::Kernels* fastload::image::find_neon() { return nullptr; }

#endif

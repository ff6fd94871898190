#include <algorithm>
#include <bit>
#include <cstring>

#include "image/kernels.h"

namespace fastload::image {
namespace {

void blend_rows(const std::uint8_t* const* rows, const std::int32_t* pairs, int pair_count, std::size_t count,
                std::int16_t* out) {
  constexpr std::int32_t rounding = 1 << (kFastBits - kMiddleBits - 1);
  for (std::size_t i = 0; i < count; ++i) {
    std::int32_t sum = rounding;
    for (int p = 0; p < pair_count; ++p) {
      const auto low = static_cast<std::int16_t>(pairs[p] & 0xFFFF);
      const auto high = static_cast<std::int16_t>(pairs[p] >> 16);
      sum += low * rows[2 * p][i] + high * rows[2 * p + 1][i];
    }
    out[i] = static_cast<std::int16_t>(sum >> (kFastBits - kMiddleBits));
  }
}

// Weight k of a step.
template <bool Wide>
FASTLOAD_INLINE std::uint32_t weight_of(const std::int16_t* step, int k) {
  const auto coarse = static_cast<std::uint32_t>(step[k]);
  return Wide ? (coarse << kFineBits) + static_cast<std::uint32_t>(step[16 + k]) : coarse;
}

// One output's weighted sum in each channel, modulo 2^32.
template <int Channels, bool Wide>
FASTLOAD_INLINE void weigh(const std::int16_t* values, const std::int16_t* weights, int steps,
                           std::uint32_t* sums) {
  for (int step = 0; step < steps; ++step, weights += Wide ? 32 : 16) {
    if constexpr (Channels == 3) {
      const std::uint32_t first = weight_of<Wide>(weights, 0), second = weight_of<Wide>(weights, 1);
      for (int c = 0; c < 3; ++c)
        sums[c] += first * static_cast<std::uint32_t>(values[c]) +
                   second * static_cast<std::uint32_t>(values[3 + c]);
      values += 6;
    } else {
      for (int k = 0; k < 8; ++k)
        sums[0] += weight_of<Wide>(weights, k) * static_cast<std::uint32_t>(values[k]);
      values += 8;
    }
  }
}

template <int Channels, bool Wide>
void blend_blocks(const std::int16_t* row, const Columns& columns, std::uint8_t* out,
                  const RowLayout& layout) {
  constexpr int shift = Wide ? kWideBits : kFastBits + kMiddleBits;
  const std::size_t stride = static_cast<std::size_t>(columns.steps) * (Wide ? 32 : 16);
  for (std::size_t i = 0; i < 8 * columns.blocks; ++i) {
    const std::int16_t* weights = columns.weights + (i / 8 * 4 + i % 4) * stride + i % 8 / 4 * 8;
    std::uint32_t sums[Channels] = {};
    weigh<Channels, Wide>(row + columns.offsets[i], weights, columns.steps, sums);
    for (std::size_t c = 0; c < Channels; ++c) {
      const auto sum = static_cast<std::int32_t>(sums[c] + (1u << (shift - 1))) >> shift;
      out[layout.planar ? c * layout.plane_stride + i : i * Channels + c] =
          static_cast<std::uint8_t>(std::clamp(sum, 0, 255));
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
  for (std::size_t i = 0; i < pixels; ++i)
    for (std::size_t c = 0; c < 3; ++c) out[c * plane_stride + i] = in[3 * i + c];
}

void convert(const std::uint8_t* in, std::size_t count, const float* a, const float* b, ElementType type,
             std::byte* out) {
  for (std::size_t i = 0, phase = 0; i < count; ++i) {
    const float y = static_cast<float>(in[i]) * a[phase] + b[phase];
    if (++phase == 24) phase = 0;
    if (type == ElementType::float32) {
      std::memcpy(out + 4 * i, &y, 4);
    } else {
      const std::uint16_t half = type == ElementType::float16 ? to_float16(y) : to_bfloat16(y);
      std::memcpy(out + 2 * i, &half, 2);
    }
  }
}

void mix(std::uint8_t* data, const std::uint8_t* seconds, std::size_t count, float own, float other) {
  for (std::size_t i = 0; i < count; ++i) {
    const float second = seconds == nullptr ? other : static_cast<float>(seconds[i]) * other;
    data[i] = truncate(static_cast<float>(data[i]) * own + second);
  }
}

}  // namespace

const Kernels* find_plain() {
  static constexpr Kernels table = {Simd::plain, blend_rows, blend_columns, deinterleave, convert, mix};
  return &table;
}

std::uint16_t to_float16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t sign = (bits >> 16) & 0x8000u;
  const std::uint32_t magnitude = bits & 0x7FFFFFFFu;
  if (magnitude >= 0x47800000u)  // 65536 and above, infinity, NaN
    return static_cast<std::uint16_t>(sign | (magnitude > 0x7F800000u ? 0x7E00u : 0x7C00u));
  if (magnitude < 0x38800000u) {  // below 2^-14: subnormal, in units of 2^-24
    if (magnitude < 0x33000000u) return static_cast<std::uint16_t>(sign);
    const std::uint32_t mantissa = (magnitude & 0x7FFFFFu) | 0x800000u;
    const std::uint32_t shift = 126 - (magnitude >> 23);
    const std::uint32_t half = 1u << (shift - 1), rest = mantissa & ((1u << shift) - 1);
    std::uint32_t result = mantissa >> shift;
    if (rest > half || (rest == half && (result & 1))) ++result;
    return static_cast<std::uint16_t>(sign | result);
  }
  const std::uint32_t rounded = magnitude + 0xFFFu + ((magnitude >> 13) & 1);
  return static_cast<std::uint16_t>(sign | ((rounded - 0x38000000u) >> 13));
}

std::uint16_t to_bfloat16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  return static_cast<std::uint16_t>((bits + 0x7FFFu + ((bits >> 16) & 1)) >> 16);
}

}  // namespace fastload::image

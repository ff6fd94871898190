#include "image/kernels.h"

#include <bit>
#include <cstring>

namespace fastload::image {

void blend_rows_plain(const std::uint8_t* const* rows, const std::int32_t* pairs, int pair_count,
                      std::size_t count, std::int16_t* out) {
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

void deinterleave_plain(const std::uint8_t* in, std::size_t pixels, std::uint8_t* out,
                        std::size_t plane_stride) {
  for (std::size_t i = 0; i < pixels; ++i)
    for (std::size_t c = 0; c < 3; ++c) out[c * plane_stride + i] = in[3 * i + c];
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

void convert_plain(const std::uint8_t* in, std::size_t count, const float* a, const float* b,
                   ElementType type, std::byte* out) {
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

}  // namespace fastload::image

// The inner loops, plain and AVX2. Each pair computes the same integers or floats.
#pragma once

#include <cstddef>
#include <cstdint>

#include "image/program.h"
#include "image/simd.h"

namespace fastload::image {

inline constexpr int kFastBits = 14;
inline constexpr int kMiddleBits = 7;
inline constexpr int kFastTaps = 24;
inline constexpr int kWideBits = 22;

// out[i] = (sum over k of weight k * rows[k][i] + rounding) >> 7, int16 with 7 fractional bits. `pairs` holds
// two int16 weights an entry; rows come in pairs too (the last twice where their number is odd). Nothing
// past `count` is read or written.
void blend_rows_plain(const std::uint8_t* const* rows, const std::int32_t* pairs, int pair_count,
                      std::size_t count, std::int16_t* out);
void blend_rows_avx2(const std::uint8_t* const* rows, const std::int32_t* pairs, int pair_count,
                     std::size_t count, std::int16_t* out);

// The horizontal pass for three channels: `blocks` of eight outputs, planar or interleaved.
void blend_columns_avx2(const std::int16_t* row, const std::int32_t* offsets, const std::int16_t* spread,
                        int pairs, std::size_t blocks, std::uint8_t* out, bool planar,
                        std::size_t plane_stride);

// Interleaved RGB to planes.
void deinterleave_plain(const std::uint8_t* in, std::size_t pixels, std::uint8_t* out,
                        std::size_t plane_stride);
void deinterleave_avx2(const std::uint8_t* in, std::size_t pixels, std::uint8_t* out,
                       std::size_t plane_stride);

// y = x * a + b, rounded to `type` (not uint8). `a` and `b` have 24 entries, used in turn.
void convert_plain(const std::uint8_t* in, std::size_t count, const float* a, const float* b,
                   ElementType type, std::byte* out);
void convert_avx2(const std::uint8_t* in, std::size_t count, const float* a, const float* b, ElementType type,
                  std::byte* out);

std::uint16_t to_float16(float value);
std::uint16_t to_bfloat16(float value);

}  // namespace fastload::image

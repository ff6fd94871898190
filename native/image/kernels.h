// The inner loops, a table of them for each instruction set (kernels_*.cpp). All tables compute the same
// integers and floats, bit for bit.
#pragma once

#include <cstddef>
#include <cstdint>

#include "image/program.h"
#include "image/simd.h"
#include "image/vectorise.h"

namespace fastload::image {

inline constexpr int kFastBits = 14;
inline constexpr int kMiddleBits = 7;
inline constexpr int kFastTaps = 24;
inline constexpr int kWideBits = 22;
inline constexpr int kFineBits = 12;  // of a wide weight; the others are coarse

// How a row of pixels is written: interleaved, or `planes` apart by `plane_stride` bytes. Up to 31 bytes
// after each row or plane may be overwritten.
struct RowLayout {
  bool planar = false;
  std::size_t plane_stride = 0;
};

// A horizontal pass, laid out in blocks of eight outputs (columns.h makes it). An output is weighed in steps
// of eight values from its first on: two pixels of three channels (and two values more, with weight zero), or
// eight pixels of one.
struct Columns {
  int channels = 3;  // or 1
  bool wide = false;
  int steps = 0;
  std::size_t blocks = 0;
  const std::int32_t* offsets = nullptr;  // [block][8]: each output's first value in the row
  // [block][j][step][part][side][8], j < 4: output j + 4 * side of the block. For three channels the eight
  // are the two pixels' weights three times over, and two zeros. Wide weights have two parts, coarse (the
  // weight shifted right by kFineBits) and fine (the rest); others have one.
  const std::int16_t* weights = nullptr;

  std::size_t parts() const { return wide ? 2 : 1; }
};

struct Kernels {
  Simd simd;

  // The vertical pass: out[i] = (sum over k of weight k * rows[k][i] + rounding) >> 7, int16 with 7
  // fractional bits. `pairs` holds two int16 weights an entry, not negative; rows come in pairs too (the last
  // twice where their number is odd). Nothing past `count` is read or written.
  void (*blend_rows)(const std::uint8_t* const* rows, const std::int32_t* pairs, int pair_count,
                     std::size_t count, std::int16_t* out);

  // The horizontal pass over such values, or with wide weights over pixels as int16: rounded, shifted,
  // clipped.
  void (*blend_columns)(const std::int16_t* row, const Columns& columns, std::uint8_t* out,
                        const RowLayout& layout);

  // Interleaved RGB to planes.
  void (*deinterleave)(const std::uint8_t* in, std::size_t pixels, std::uint8_t* out,
                       std::size_t plane_stride);

  // y = x * a + b, rounded to `type` (not uint8). `a` and `b` have 24 entries, used in turn.
  void (*convert)(const std::uint8_t* in, std::size_t count, const float* a, const float* b, ElementType type,
                  std::byte* out);

  // truncate(x * own + y * other) for each value x, in place; y is `seconds`, or 1 where that is null.
  void (*mix)(std::uint8_t* data, const std::uint8_t* seconds, std::size_t count, float own, float other);
};

// The table in use.
const Kernels& kernels();

// Each set's table; null where this build or this machine has not the set.
const Kernels* find_plain();
const Kernels* find_neon();
const Kernels* find_avx2();
const Kernels* find_avx512();

std::uint16_t to_float16(float value);
std::uint16_t to_bfloat16(float value);

// To uint8, clipped, towards zero.
FASTLOAD_INLINE std::uint8_t truncate(float value) {
  value = value < 0.0f ? 0.0f : value;
  value = value > 255.0f ? 255.0f : value;
  return static_cast<std::uint8_t>(static_cast<std::int32_t>(value));
}

}  // namespace fastload::image

// The inner loops of planes (planes.h): plain ones, and AVX2's. Both compute the same integers.
#pragma once

#include <cstddef>
#include <cstdint>

#include "image/axis.h"
#include "image/buffer.h"

namespace fastload::image {

// Samples of planes that are resized are int16 with so many fractional bits.
inline constexpr int kSampleBits = 6;

// AVX2 makes so many samples at once: up to so many less one past the last are read and written.
inline constexpr std::int64_t kSampleStep = 16;

// The most that a row may be narrowed by: four outputs read no more than 16 samples then.
inline constexpr double kWidest = 2.75;

// The weights of a row for AVX2, in blocks of eight outputs, four a lane.
struct Spread {
  void plan(const Axis& axis);

  std::size_t blocks = 0;
  int pairs = 0;
  Buffer<std::int32_t> offsets;  // where each lane reads 16 samples
  Buffer<std::int8_t> places;    // which of these each pair of taps takes, widened to int16
  Buffer<std::int16_t> weights;
};

struct PlaneKernels {
  // The horizontal pass over one row of a plane, from the sample axis.low on: int16 with kMiddleBits.
  // `spread` is planned where uses_spread.
  void (*blend_plane)(const std::uint8_t* row, const Axis& axis, const Spread& spread, std::int16_t* out);
  bool uses_spread;

  // The vertical pass over rows of that, with kSampleBits. Weights and rows are as for Kernels::blend_rows.
  void (*blend_samples)(const std::int16_t* const* rows, const std::int32_t* pairs, int pair_count,
                        std::size_t count, std::int16_t* out);

  // Luma and chroma to R, G and B, `plane_stride` apart, as JFIF defines them.
  void (*colour)(const std::int16_t* const* in, std::size_t count, std::uint8_t* out,
                 std::size_t plane_stride);

  // One plane to bytes.
  void (*round)(const std::int16_t* in, std::size_t count, std::uint8_t* out);

  // Three planes to interleaved RGB; writes exactly 3 * count.
  void (*interleave)(const std::uint8_t* in, std::size_t plane_stride, std::size_t count, std::uint8_t* out);
};

// Those for the instruction set in use: AVX-512 has none of its own, NEON the plain ones.
const PlaneKernels& plane_kernels();

}  // namespace fastload::image

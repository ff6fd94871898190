// Which inputs each output of one axis weighs, and by how much.
#pragma once

#include <cstdint>

#include "image/buffer.h"
#include "image/geometry.h"

namespace fastload::image {

// What one axis reads: `count` inputs, of which [begin, begin + extent) are resized. A number is all of so
// many.
struct Stretch {
  Stretch(std::int64_t inputs) : count(inputs), extent(static_cast<double>(inputs)) {}  // NOLINT: implicit
  Stretch(std::int64_t inputs, double first, double length) : count(inputs), begin(first), extent(length) {}
  std::int64_t count;
  double begin = 0;
  double extent;
};

// The weights of one axis for the outputs [begin, begin + count): output i is the sum over t < taps of
// weights[i * taps + t] * input[first[i] + t]. Zero weights pad a row, whose inputs may lie past the end.
struct Axis {
  std::int64_t count = 0;
  int taps = 0;
  std::int64_t low = 0;  // inputs that are read: [low, high)
  std::int64_t high = 0;
  Buffer<std::int32_t> first;
  Buffer<std::int32_t> weights;
  Buffer<double> exact;

  // Computes the float64 weights (`exact`), as Pillow does, and `first`.
  void compute(const Stretch& source, std::int64_t target, std::int64_t begin, std::int64_t count,
               Interpolation interpolation, bool antialias);
  void compute_nearest(std::int64_t source, std::int64_t target, std::int64_t begin, std::int64_t count);
  void round_fast();  // to 14 bits that sum to 16,384
  void round_wide();  // to 22 bits
  void mirror();      // reverses the order of the outputs
};

// The number of taps of a whole axis, wherever the window lies: it decides the arithmetic.
int tap_count(const Stretch& source, std::int64_t target, Interpolation interpolation, bool antialias);

}  // namespace fastload::image

// Resizing one pass of a program, row by row, in the integer arithmetic that docs/images.md specifies and
// fastload/transforms/resize.py repeats.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "image/buffer.h"
#include "image/geometry.h"
#include "image/jpeg.h"

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

// How a row of pixels is written: interleaved, or `planes` apart by `plane_stride` bytes. Up to 31 bytes
// after each row or plane may be overwritten.
struct RowLayout {
  bool planar = false;
  std::size_t plane_stride = 0;
};

// Makes the rows of one pass: prepare(), begin(), then any row of the window.
class Resizer {
 public:
  // Plans `pass` over images of `channels`. Returns which part of the input it reads.
  Window prepare(const Pass& pass, int channels);

  // Gives the input: a view that has at least that part.
  void begin(const View& input);

  // The part of pass.output that is not padding, in its coordinates after mirroring.
  Window inner() const { return inner_; }

  // Writes row `row` (0 is the first of inner()) with inner().width pixels.
  void write_row(std::int64_t row, std::uint8_t* out, const RowLayout& layout);

 private:
  enum class Method { copy, nearest, fast, wide };

  void prepare_fast();
  void write_interleaved(const std::uint8_t* row, std::uint8_t* out, const RowLayout& layout);
  void write_columns(const std::int16_t* middle, std::uint8_t* out, const RowLayout& layout);
  void write_copy(std::int64_t row, std::uint8_t* out, const RowLayout& layout);
  void write_nearest(std::int64_t row, std::uint8_t* out, const RowLayout& layout);
  void write_fast(std::int64_t row, std::uint8_t* out, const RowLayout& layout);
  void write_wide(std::int64_t row, std::uint8_t* out, const RowLayout& layout);
  // The two passes of the wide method, one row each, rounded and clipped to uint8.
  void combine_columns(const std::uint8_t* in, std::uint8_t* out) const;
  const std::uint8_t* combine_rows(std::int64_t row, const std::uint8_t* in, std::size_t stride,
                                   std::size_t count);

  Method method_ = Method::copy;
  int channels_ = 3;
  bool flipped_ = false;
  bool flipped_rows_ = false;
  bool vectorised_ = false;
  bool vertical_first_ = false;  // the order of the wide method's passes
  Window inner_;
  Window part_;  // what is read of the input
  View input_;
  Axis vertical_;
  Axis horizontal_;
  // The vertical weights in pairs of int16 (low and high half), one after the other for each row.
  Buffer<std::int32_t> vertical_pairs_;
  std::vector<const std::uint8_t*> rows_;
  Buffer<std::int16_t> middle_;
  // For the AVX2 horizontal pass, in blocks of eight outputs: where each reads, and its weights spread over
  // lanes (kernels_avx2.cpp).
  Buffer<std::int32_t> offsets_;
  Buffer<std::int16_t> spread_;
  int row_pairs_ = 0;
  int column_pairs_ = 0;
  Buffer<std::uint8_t> interleaved_;
  // The wide method: all rows after the horizontal pass where that comes first, sums, and one row.
  Buffer<std::uint8_t> columns_;
  Buffer<std::int32_t> sums_;
  Buffer<std::uint8_t> combined_;
};

}  // namespace fastload::image

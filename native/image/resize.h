// Resizing one pass of a program, row by row, in the integer arithmetic that docs/images.md specifies and
// fastload/transforms/resize.py repeats.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "image/axis.h"
#include "image/buffer.h"
#include "image/columns.h"
#include "image/geometry.h"
#include "image/jpeg.h"
#include "image/kernels.h"

namespace fastload::image {

// Writes the (fast) weights of each output in pairs of int16 (low and high half), one output after the other.
// Returns how many pairs an output has.
int pair_weights(const Axis& axis, Buffer<std::int32_t>& pairs);

// The part of pass.output that is not padding, in its coordinates after mirroring. `used` is what pass.output
// has of the resized image.
Window place(const Pass& pass, const Window& used);

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

  void pair_rows();
  void write_interleaved(const std::uint8_t* row, std::uint8_t* out, const RowLayout& layout);
  void write_copy(std::int64_t row, std::uint8_t* out, const RowLayout& layout);
  void write_nearest(std::int64_t row, std::uint8_t* out, const RowLayout& layout);
  void write_fast(std::int64_t row, std::uint8_t* out, const RowLayout& layout);
  void write_wide(std::int64_t row, std::uint8_t* out, const RowLayout& layout);
  // The two passes of the wide method, one row each, rounded and clipped to uint8.
  void combine_columns(const std::uint8_t* in, std::uint8_t* out, const RowLayout& layout);
  const std::uint8_t* combine_rows(std::int64_t row, const std::uint8_t* in, std::size_t stride,
                                   std::size_t count);

  Method method_ = Method::copy;
  int channels_ = 3;
  bool flipped_ = false;
  bool flipped_rows_ = false;
  const Kernels* kernels_ = nullptr;
  bool vertical_first_ = false;  // the order of the wide method's passes
  Window inner_;
  Window part_;  // what is read of the input
  View input_;
  Axis vertical_;
  Axis horizontal_;
  Buffer<std::int32_t> vertical_pairs_;
  std::vector<const std::uint8_t*> rows_;
  Buffer<std::int16_t> middle_;
  ColumnPlan column_plan_;
  int row_pairs_ = 0;
  Buffer<std::uint8_t> interleaved_;
  // The wide method: all rows after the horizontal pass where that comes first, sums, and one row.
  Buffer<std::uint8_t> resized_rows_;
  Buffer<std::int32_t> sums_;
  Buffer<std::uint8_t> combined_;
};

}  // namespace fastload::image

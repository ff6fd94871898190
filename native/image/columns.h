// The horizontal pass of a resize as the kernels want it.
#pragma once

#include <cstddef>
#include <cstdint>

#include "image/axis.h"
#include "image/buffer.h"
#include "image/kernels.h"

namespace fastload::image {

class ColumnPlan {
 public:
  // Lays out the rounded weights of `axis`: 22 bits of them where `wide`.
  void lay_out(const Axis& axis, int channels, bool wide);

  const Columns& columns() const { return columns_; }

  // How many values of a row kernels read, from axis.low on: those past the row's end have weight zero.
  std::size_t reach() const { return reach_; }

 private:
  // Writes the weights of one output, beginning at `lane`.
  template <int Channels>
  void spread(const std::int32_t* taps, int count, std::int16_t* lane) const;

  Columns columns_;
  std::size_t reach_ = 0;
  Buffer<std::int32_t> offsets_;
  Buffer<std::int16_t> weights_;
};

}  // namespace fastload::image

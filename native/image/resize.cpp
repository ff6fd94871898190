#include "image/resize.h"

#include <algorithm>
#include <cstring>

#include "image/vectorise.h"

namespace fastload::image {
namespace {

// A row's sums begin at what rounds them; rows are added in pairs, which halves the reading and writing of
// sums.
constexpr std::int32_t kWideRounding = 1 << (kWideBits - 1);

struct AddRows {
  static FASTLOAD_INLINE void run(std::int32_t* sums, const std::uint8_t* first, const std::uint8_t* second,
                                  std::size_t count, std::int32_t first_weight, std::int32_t second_weight) {
    for (std::size_t i = 0; i < count; ++i) sums[i] += first_weight * first[i] + second_weight * second[i];
  }
};

struct Clip {
  static FASTLOAD_INLINE void run(const std::int32_t* sums, std::size_t count, std::uint8_t* out) {
    for (std::size_t i = 0; i < count; ++i)
      out[i] = static_cast<std::uint8_t>(std::clamp(sums[i] >> kWideBits, 0, 255));
  }
};

struct Widen {
  static FASTLOAD_INLINE void run(const std::uint8_t* in, std::size_t count, std::int16_t* out) {
    for (std::size_t i = 0; i < count; ++i) out[i] = in[i];
  }
};

}  // namespace

int pair_weights(const Axis& axis, Buffer<std::int32_t>& pairs) {
  const int count = (axis.taps + 1) / 2;
  std::int32_t* pair = pairs.reserve(static_cast<std::size_t>(axis.count) * static_cast<std::size_t>(count));
  const std::int32_t* weights = axis.weights.data();
  for (std::int64_t i = 0; i < axis.count; ++i, weights += axis.taps)
    for (int k = 0; k < axis.taps; k += 2) {
      const std::int32_t second = k + 1 < axis.taps ? weights[k + 1] : 0;
      *pair++ = static_cast<std::int32_t>(static_cast<std::uint32_t>(weights[k]) |
                                          static_cast<std::uint32_t>(second) << 16);
    }
  return count;
}

Window place(const Pass& pass, const Window& used) {
  Window inner{used.top - pass.output.top, used.left - pass.output.left, used.height, used.width};
  if (pass.flipped) inner.left = pass.output.width - inner.right();
  if (pass.flipped_rows) inner.top = pass.output.height - inner.bottom();
  return inner;
}

Window Resizer::prepare(const Pass& pass, int channels) {
  channels_ = channels;
  flipped_ = pass.flipped;
  flipped_rows_ = pass.flipped_rows;
  kernels_ = &kernels();
  const Window used = intersection(pass.output, whole(pass.resized));
  inner_ = place(pass, used);
  if (used.height == 0 || used.width == 0) {
    method_ = Method::copy;
    inner_.height = 0;
    return part_ = {pass.source.top, pass.source.left, 0, 0};
  }
  const Size size = {pass.source.height, pass.source.width}, target = pass.resized;
  if (!pass.resizes) {
    method_ = Method::copy;
    return part_ = {pass.source.top + used.top, pass.source.left + used.left, used.height, used.width};
  }
  const Interpolation interpolation = pass.interpolation;
  if (interpolation == Interpolation::nearest) {
    method_ = Method::nearest;
    vertical_.compute_nearest(size.height, target.height, used.top, used.height);
    horizontal_.compute_nearest(size.width, target.width, used.left, used.width);
  } else {
    const bool all = pass.box.height == 0;
    const Stretch rows = all ? size.height : Stretch(size.height, pass.box.top, pass.box.height);
    const Stretch columns = all ? size.width : Stretch(size.width, pass.box.left, pass.box.width);
    const int longest = std::max(tap_count(rows, target.height, interpolation, pass.antialias),
                                 tap_count(columns, target.width, interpolation, pass.antialias));
    vertical_first_ =
        target.height < size.height && 2 * (size.width - target.width) < size.height - target.height;
    method_ = interpolation == Interpolation::bilinear && longest <= kFastTaps ? Method::fast : Method::wide;
    vertical_.compute(rows, target.height, used.top, used.height, interpolation, pass.antialias);
    horizontal_.compute(columns, target.width, used.left, used.width, interpolation, pass.antialias);
  }
  if (method_ == Method::fast) {
    vertical_.round_fast();
    horizontal_.round_fast();
  } else if (method_ == Method::wide) {
    vertical_.round_wide();
    horizontal_.round_wide();
  }
  if (flipped_) horizontal_.mirror();
  if (method_ == Method::fast) pair_rows();
  if (method_ != Method::nearest) column_plan_.lay_out(horizontal_, channels_, method_ == Method::wide);
  part_ = {pass.source.top + vertical_.low, pass.source.left + horizontal_.low,
           vertical_.high - vertical_.low, horizontal_.high - horizontal_.low};
  return part_;
}

void Resizer::pair_rows() {
  row_pairs_ = pair_weights(vertical_, vertical_pairs_);
  rows_.resize(static_cast<std::size_t>(2 * row_pairs_));
}

void Resizer::begin(const View& input) {
  input_ = input;
  if (method_ != Method::wide || vertical_first_) return;
  const std::size_t stride =
      static_cast<std::size_t>(horizontal_.count) * static_cast<std::size_t>(channels_);
  std::uint8_t* out = resized_rows_.reserve(stride * static_cast<std::size_t>(part_.height) + 31);
  for (std::int64_t row = 0; row < part_.height; ++row, out += stride)
    combine_columns(input_.at(part_.top + row, part_.left, channels_), out, {});
}

void Resizer::combine_columns(const std::uint8_t* in, std::uint8_t* out, const RowLayout& layout) {
  const std::size_t count = static_cast<std::size_t>(part_.width) * static_cast<std::size_t>(channels_);
  std::int16_t* middle = middle_.reserve(std::max(count, column_plan_.reach()));
  vectorised<Widen>(in, count, middle);
  kernels_->blend_columns(middle, column_plan_.columns(), out, layout);
}

const std::uint8_t* Resizer::combine_rows(std::int64_t row, const std::uint8_t* in, std::size_t stride,
                                          std::size_t count) {
  const std::int64_t from = vertical_.first.data()[row] - vertical_.low;
  const auto taps = std::min<std::int64_t>(vertical_.taps, part_.height - from);
  const std::int32_t* weights = vertical_.weights.data() + row * vertical_.taps;
  std::int32_t* sums = sums_.reserve(count);
  std::fill(sums, sums + count, kWideRounding);
  in += static_cast<std::size_t>(from) * stride;
  for (std::int64_t k = 0; k < taps; k += 2, in += 2 * stride) {
    const bool both = k + 1 < taps;
    vectorised<AddRows>(sums, in, both ? in + stride : in, count, weights[k], both ? weights[k + 1] : 0);
  }
  std::uint8_t* clipped = combined_.reserve(count);
  vectorised<Clip>(static_cast<const std::int32_t*>(sums), count, clipped);
  return clipped;
}

void Resizer::write_row(std::int64_t row, std::uint8_t* out, const RowLayout& layout) {
  if (flipped_rows_) row = inner_.height - 1 - row;
  switch (method_) {
    case Method::copy:
      return write_copy(row, out, layout);
    case Method::nearest:
      return write_nearest(row, out, layout);
    case Method::fast:
      return write_fast(row, out, layout);
    case Method::wide:
      return write_wide(row, out, layout);
  }
}

void Resizer::write_interleaved(const std::uint8_t* row, std::uint8_t* out, const RowLayout& layout) {
  const auto pixels = static_cast<std::size_t>(inner_.width);
  if (channels_ == 1 || !layout.planar) {
    std::memcpy(out, row, pixels * static_cast<std::size_t>(channels_));
  } else {
    kernels_->deinterleave(row, pixels, out, layout.plane_stride);
  }
}

void Resizer::write_copy(std::int64_t row, std::uint8_t* out, const RowLayout& layout) {
  const std::uint8_t* in = input_.at(part_.top + row, part_.left, channels_);
  if (!flipped_) return write_interleaved(in, out, layout);
  const auto pixels = static_cast<std::size_t>(inner_.width), channels = static_cast<std::size_t>(channels_);
  std::uint8_t* mirrored = interleaved_.reserve(pixels * channels);
  for (std::size_t i = 0; i < pixels; ++i)
    for (std::size_t c = 0; c < channels; ++c)
      mirrored[(pixels - 1 - i) * channels + c] = in[i * channels + c];
  write_interleaved(mirrored, out, layout);
}

void Resizer::write_nearest(std::int64_t row, std::uint8_t* out, const RowLayout& layout) {
  const std::uint8_t* in =
      input_.at(part_.top + vertical_.first.data()[row] - vertical_.low, part_.left, channels_);
  const auto pixels = static_cast<std::size_t>(inner_.width), channels = static_cast<std::size_t>(channels_);
  std::uint8_t* gathered = interleaved_.reserve(pixels * channels);
  for (std::size_t i = 0; i < pixels; ++i) {
    const auto from = static_cast<std::size_t>(horizontal_.first.data()[i] - horizontal_.low) * channels;
    for (std::size_t c = 0; c < channels; ++c) gathered[i * channels + c] = in[from + c];
  }
  write_interleaved(gathered, out, layout);
}

void Resizer::write_fast(std::int64_t row, std::uint8_t* out, const RowLayout& layout) {
  const std::int64_t from = vertical_.first.data()[row] - vertical_.low;
  for (std::size_t k = 0; k < rows_.size(); ++k) {
    // Past the last row the weights are zero.
    const std::int64_t at = std::min<std::int64_t>(from + static_cast<std::int64_t>(k), part_.height - 1);
    rows_[k] = input_.at(part_.top + at, part_.left, channels_);
  }
  const std::int32_t* weights = vertical_pairs_.data() + row * row_pairs_;
  int pairs = row_pairs_;
  while (pairs > 1 && weights[pairs - 1] == 0) --pairs;
  const std::size_t count = static_cast<std::size_t>(part_.width) * static_cast<std::size_t>(channels_);
  std::int16_t* middle = middle_.reserve(std::max(count, column_plan_.reach()));
  kernels_->blend_rows(rows_.data(), weights, pairs, count, middle);
  kernels_->blend_columns(middle, column_plan_.columns(), out, layout);
}

void Resizer::write_wide(std::int64_t row, std::uint8_t* out, const RowLayout& layout) {
  const auto channels = static_cast<std::size_t>(channels_);
  if (vertical_first_) {
    const std::uint8_t* in = input_.at(part_.top, part_.left, channels_);
    const auto width = static_cast<std::size_t>(part_.width) * channels;
    return combine_columns(combine_rows(row, in, input_.stride, width), out, layout);
  }
  const std::size_t count = static_cast<std::size_t>(horizontal_.count) * channels;
  write_interleaved(combine_rows(row, resized_rows_.data(), count, count), out, layout);
}

}  // namespace fastload::image

#include "image/resize.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numbers>

#include "image/kernels.h"
#include "image/series.h"
#include "image/simd.h"

namespace fastload::image {
namespace {

double support_of(Interpolation interpolation) {
  switch (interpolation) {
    case Interpolation::bicubic:
      return 2.0;
    case Interpolation::lanczos:
      return 3.0;
    default:
      return 1.0;
  }
}

double sinc(double x) { return x == 0.0 ? 1.0 : sine_pi(x) / (x * std::numbers::pi); }

double filter_value(double x, Interpolation interpolation) {
  x = std::abs(x);
  switch (interpolation) {
    case Interpolation::bicubic:
      if (x < 1.0) return (1.5 * x - 2.5) * x * x + 1.0;
      return x < 2.0 ? (((x - 5.0) * x + 8.0) * x - 4.0) * -0.5 : 0.0;
    case Interpolation::lanczos:
      return x < 3.0 ? sinc(x) * sinc(x / 3.0) : 0.0;
    default:
      return x < 1.0 ? 1.0 - x : 0.0;
  }
}

// Which inputs an output weighs.
struct Geometry {
  Geometry(const Stretch& input, std::int64_t target, Interpolation interpolation, bool antialias)
      : source(input.count),
        begin(input.begin),
        scale(input.extent / static_cast<double>(target)),
        stretch(antialias ? std::max(scale, 1.0) : 1.0),
        support(support_of(interpolation) * stretch) {}

  double center(std::int64_t i) const { return (static_cast<double>(i) + 0.5) * scale + begin; }
  std::int64_t low(double center) const {
    return std::max<std::int64_t>(static_cast<std::int64_t>(center - support + 0.5), 0);
  }
  std::int64_t high(double center) const {
    return std::min<std::int64_t>(static_cast<std::int64_t>(center + support + 0.5), source);
  }

  std::int64_t source;
  double begin;
  double scale;
  double stretch;
  double support;
};

std::uint8_t clip(std::int32_t value) {
  return static_cast<std::uint8_t>(std::clamp(value >> kWideBits, 0, 255));
}

constexpr std::int32_t kWideRounding = 1 << (kWideBits - 1);

}  // namespace

int tap_count(const Stretch& source, std::int64_t target, Interpolation interpolation, bool antialias) {
  const Geometry geometry(source, target, interpolation, antialias);
  const auto bound = static_cast<std::int64_t>(2.0 * geometry.support) + 1;
  if (bound <= kFastTaps) return static_cast<int>(bound);
  std::int64_t taps = 0;
  for (std::int64_t i = 0; i < target; ++i) {
    const double center = geometry.center(i);
    taps = std::max(taps, geometry.high(center) - geometry.low(center));
  }
  return static_cast<int>(taps);
}

void Axis::compute(const Stretch& source, std::int64_t target, std::int64_t begin, std::int64_t outputs,
                   Interpolation interpolation, bool antialias) {
  const Geometry geometry(source, target, interpolation, antialias);
  const double inverse = 1.0 / geometry.stretch;
  count = outputs;
  taps = 0;
  low = source.count;
  high = 0;
  std::int32_t* starts = first.reserve(static_cast<std::size_t>(count));
  for (std::int64_t i = 0; i < count; ++i) {
    const double center = geometry.center(begin + i);
    const std::int64_t from = geometry.low(center), to = geometry.high(center);
    starts[i] = static_cast<std::int32_t>(from);
    low = std::min(low, from);
    high = std::max(high, to);
    taps = std::max(taps, static_cast<int>(to - from));
  }
  const auto width = static_cast<std::size_t>(taps);
  double* row = exact.reserve(static_cast<std::size_t>(count) * width);
  for (std::int64_t i = 0; i < count; ++i, row += taps) {
    const double center = geometry.center(begin + i);
    const auto inputs = static_cast<int>(geometry.high(center) - starts[i]);
    double total = 0.0;
    for (int k = 0; k < inputs; ++k) {
      row[k] = filter_value((static_cast<double>(k + starts[i]) - center + 0.5) * inverse, interpolation);
      total += row[k];
    }
    if (total != 0.0)
      for (int k = 0; k < inputs; ++k) row[k] /= total;
    std::fill(row + inputs, row + taps, 0.0);
  }
}

void Axis::compute_nearest(std::int64_t source, std::int64_t target, std::int64_t begin,
                           std::int64_t outputs) {
  count = outputs;
  taps = 1;
  std::int32_t* starts = first.reserve(static_cast<std::size_t>(count));
  for (std::int64_t i = 0; i < count; ++i)
    starts[i] = static_cast<std::int32_t>((2 * (begin + i) + 1) * source / (2 * target));
  low = starts[0];
  high = starts[count - 1] + 1;
}

void Axis::round_fast() {
  const auto total = static_cast<std::size_t>(count * taps);
  std::int32_t* rounded = weights.reserve(total);
  const double* row = exact.data();
  for (std::int64_t i = 0; i < count; ++i, row += taps, rounded += taps) {
    std::int32_t sum = 0;
    int largest = 0;
    for (int k = 0; k < taps; ++k) {
      // The weights are not negative: truncation is floor.
      rounded[k] = static_cast<std::int32_t>(row[k] * (1 << kFastBits) + 0.5);
      sum += rounded[k];
      if (rounded[k] > rounded[largest]) largest = k;
    }
    rounded[largest] += (1 << kFastBits) - sum;
  }
}

void Axis::round_wide() {
  const auto total = static_cast<std::size_t>(count * taps);
  std::int32_t* rounded = weights.reserve(total);
  const double* values = exact.data();
  for (std::size_t i = 0; i < total; ++i) {
    const double scaled = values[i] * (1 << kWideBits);
    rounded[i] = static_cast<std::int32_t>(scaled < 0.0 ? scaled - 0.5 : scaled + 0.5);
  }
}

void Axis::mirror() {
  std::reverse(first.data(), first.data() + count);
  if (weights.data() == nullptr) return;  // nearest
  for (std::int64_t i = 0, j = count - 1; i < j; ++i, --j)
    std::swap_ranges(weights.data() + i * taps, weights.data() + (i + 1) * taps, weights.data() + j * taps);
}

Window Resizer::prepare(const Pass& pass, int channels) {
  channels_ = channels;
  flipped_ = pass.flipped;
  flipped_rows_ = pass.flipped_rows;
  vectorised_ = simd() == Simd::avx2;
  const Window used = intersection(pass.output, whole(pass.resized));
  inner_ = {used.top - pass.output.top, used.left - pass.output.left, used.height, used.width};
  if (flipped_) inner_.left = pass.output.width - inner_.right();
  if (flipped_rows_) inner_.top = pass.output.height - inner_.bottom();
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
  if (method_ == Method::fast) prepare_fast();
  part_ = {pass.source.top + vertical_.low, pass.source.left + horizontal_.low,
           vertical_.high - vertical_.low, horizontal_.high - horizontal_.low};
  return part_;
}

void Resizer::prepare_fast() {
  row_pairs_ = (vertical_.taps + 1) / 2;
  const auto rows = static_cast<std::size_t>(vertical_.count);
  std::int32_t* pairs = vertical_pairs_.reserve(rows * static_cast<std::size_t>(row_pairs_));
  const std::int32_t* weights = vertical_.weights.data();
  for (std::int64_t i = 0; i < vertical_.count; ++i, weights += vertical_.taps)
    for (int k = 0; k < vertical_.taps; k += 2) {
      const std::int32_t second = k + 1 < vertical_.taps ? weights[k + 1] : 0;
      *pairs++ = static_cast<std::int32_t>(static_cast<std::uint32_t>(weights[k]) |
                                           static_cast<std::uint32_t>(second) << 16);
    }
  rows_.resize(static_cast<std::size_t>(2 * row_pairs_));
  if (!vectorised_ || channels_ != 3) return;
  column_pairs_ = (horizontal_.taps + 1) / 2;
  const auto blocks = static_cast<std::size_t>((horizontal_.count + 7) / 8);
  std::int32_t* offsets = offsets_.reserve(blocks * 8);
  std::int16_t* spread = spread_.reserve(blocks * static_cast<std::size_t>(column_pairs_) * 64);
  for (std::size_t block = 0; block < blocks; ++block) {
    for (std::size_t j = 0; j < 8; ++j) {
      // Past the last output: weigh what is there, and let the caller drop the result.
      const std::size_t i =
          std::min<std::size_t>(block * 8 + j, static_cast<std::size_t>(horizontal_.count - 1));
      offsets[block * 8 + j] = static_cast<std::int32_t>((horizontal_.first.data()[i] - horizontal_.low) * 3);
      const std::int32_t* taps = horizontal_.weights.data() + i * static_cast<std::size_t>(horizontal_.taps);
      std::int16_t* lane = spread + (j % 4) * static_cast<std::size_t>(column_pairs_) * 16 + (j / 4) * 8;
      for (int p = 0; p < column_pairs_; ++p, lane += 16) {
        const auto low = static_cast<std::uint16_t>(taps[2 * p]);
        const auto high = static_cast<std::uint16_t>(2 * p + 1 < horizontal_.taps ? taps[2 * p + 1] : 0);
        const std::uint64_t pair = low | static_cast<std::uint32_t>(high) << 16;
        const std::uint64_t twice[2] = {pair | pair << 32, pair};
        std::memcpy(lane, twice, 16);
      }
    }
    spread += static_cast<std::size_t>(column_pairs_) * 64;
  }
}

void Resizer::begin(const View& input) {
  input_ = input;
  if (method_ != Method::wide || vertical_first_) return;
  const std::size_t stride =
      static_cast<std::size_t>(horizontal_.count) * static_cast<std::size_t>(channels_);
  std::uint8_t* out = columns_.reserve(stride * static_cast<std::size_t>(part_.height));
  for (std::int64_t row = 0; row < part_.height; ++row, out += stride)
    combine_columns(input_.at(part_.top + row, part_.left, channels_), out);
}

void Resizer::combine_columns(const std::uint8_t* in, std::uint8_t* out) const {
  const auto channels = static_cast<std::size_t>(channels_);
  for (std::int64_t i = 0; i < horizontal_.count; ++i) {
    const std::int64_t from = horizontal_.first.data()[i] - horizontal_.low;
    const auto taps = std::min<std::int64_t>(horizontal_.taps, part_.width - from);
    const std::int32_t* weights = horizontal_.weights.data() + i * horizontal_.taps;
    for (std::size_t c = 0; c < channels; ++c) {
      const std::uint8_t* pixel = in + static_cast<std::size_t>(from) * channels + c;
      std::int32_t sum = kWideRounding;
      for (std::int64_t k = 0; k < taps; ++k, pixel += channels) sum += weights[k] * *pixel;
      *out++ = clip(sum);
    }
  }
}

const std::uint8_t* Resizer::combine_rows(std::int64_t row, const std::uint8_t* in, std::size_t stride,
                                          std::size_t count) {
  const std::int64_t from = vertical_.first.data()[row] - vertical_.low;
  const auto taps = std::min<std::int64_t>(vertical_.taps, part_.height - from);
  const std::int32_t* weights = vertical_.weights.data() + row * vertical_.taps;
  std::int32_t* sums = sums_.reserve(count);
  std::fill(sums, sums + count, kWideRounding);
  in += static_cast<std::size_t>(from) * stride;
  for (std::int64_t k = 0; k < taps; ++k, in += stride)
    for (std::size_t i = 0; i < count; ++i) sums[i] += weights[k] * in[i];
  std::uint8_t* clipped = combined_.reserve(count);
  for (std::size_t i = 0; i < count; ++i) clipped[i] = clip(sums[i]);
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
  } else if (vectorised_) {
    deinterleave_avx2(row, pixels, out, layout.plane_stride);
  } else {
    deinterleave_plain(row, pixels, out, layout.plane_stride);
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
  std::int16_t* middle = middle_.reserve(count + 32);
  if (!vectorised_) {
    blend_rows_plain(rows_.data(), weights, pairs, count, middle);
    return write_columns(middle, out, layout);
  }
  blend_rows_avx2(rows_.data(), weights, pairs, count, middle);
  if (channels_ != 3) return write_columns(middle, out, layout);
  blend_columns_avx2(middle, offsets_.data(), spread_.data(), column_pairs_,
                     static_cast<std::size_t>((horizontal_.count + 7) / 8), out, layout.planar,
                     layout.plane_stride);
}

void Resizer::write_columns(const std::int16_t* middle, std::uint8_t* out, const RowLayout& layout) {
  constexpr int shift = kFastBits + kMiddleBits;
  const auto channels = static_cast<std::size_t>(channels_),
             pixels = static_cast<std::size_t>(horizontal_.count);
  std::uint8_t* row = interleaved_.reserve(pixels * channels);
  for (std::size_t i = 0; i < pixels; ++i) {
    const std::int64_t from = horizontal_.first.data()[i] - horizontal_.low;
    const auto taps = std::min<std::int64_t>(horizontal_.taps, part_.width - from);
    const std::int32_t* weights = horizontal_.weights.data() + i * static_cast<std::size_t>(horizontal_.taps);
    const std::int16_t* value = middle + static_cast<std::size_t>(from) * channels;
    std::int32_t sums[3] = {1 << (shift - 1), 1 << (shift - 1), 1 << (shift - 1)};
    if (channels == 3) {
      for (std::int64_t k = 0; k < taps; ++k, value += 3)
        for (int c = 0; c < 3; ++c) sums[c] += weights[k] * value[c];
    } else {
      for (std::int64_t k = 0; k < taps; ++k) sums[0] += weights[k] * value[k];
    }
    for (std::size_t c = 0; c < channels; ++c)
      row[i * channels + c] = static_cast<std::uint8_t>(sums[c] >> shift);
  }
  write_interleaved(row, out, layout);
}

void Resizer::write_wide(std::int64_t row, std::uint8_t* out, const RowLayout& layout) {
  const auto channels = static_cast<std::size_t>(channels_);
  const std::size_t count = static_cast<std::size_t>(horizontal_.count) * channels;
  if (!vertical_first_)
    return write_interleaved(combine_rows(row, columns_.data(), count, count), out, layout);
  const std::uint8_t* in = input_.at(part_.top, part_.left, channels_);
  const auto width = static_cast<std::size_t>(part_.width) * channels;
  std::uint8_t* columns = interleaved_.reserve(count);
  combine_columns(combine_rows(row, in, input_.stride, width), columns);
  write_interleaved(columns, out, layout);
}

}  // namespace fastload::image

#include "image/axis.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "image/kernels.h"
#include "image/series.h"

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

}  // namespace fastload::image

#include "image/planes.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "image/kernels.h"
#include "image/simd.h"

namespace fastload::image {
namespace {

// The samples that make one pixel. Of ratios, 1 and 2 are what is met.
struct Upsampled {
  std::int64_t nearest;
  std::int64_t next;  // weighs 1/4 where the component is interpolated

  Upsampled(std::int64_t pixel, int ratio, std::int64_t samples) {
    const std::int64_t sample = ratio == 2 ? pixel >> 1 : pixel / ratio;
    nearest = std::min(sample, samples - 1);
    next = std::clamp<std::int64_t>(nearest + (pixel & 1 ? 1 : -1), 0, samples - 1);
  }
};

}  // namespace

void fold(const Axis& pixels, std::int64_t origin, int ratio, bool interpolated, std::int64_t samples,
          Axis& folded) {
  interpolated = interpolated && ratio == 2;
  const auto last = [&](std::int64_t i) {
    return std::min(pixels.first.data()[i] + static_cast<std::int64_t>(pixels.taps), pixels.high) - 1 +
           origin;
  };
  folded.count = pixels.count;
  folded.taps = 0;
  folded.low = samples;
  folded.high = 0;
  std::int32_t* first = folded.first.reserve(static_cast<std::size_t>(pixels.count));
  for (std::int64_t i = 0; i < pixels.count; ++i) {
    const Upsampled low(pixels.first.data()[i] + origin, ratio, samples), high(last(i), ratio, samples);
    const std::int64_t from = interpolated ? std::min(low.nearest, low.next) : low.nearest;
    const std::int64_t to = (interpolated ? std::max(high.nearest, high.next) : high.nearest) + 1;
    first[i] = static_cast<std::int32_t>(from);
    folded.low = std::min(folded.low, from);
    folded.high = std::max(folded.high, to);
    folded.taps = std::max(folded.taps, static_cast<int>(to - from));
  }
  const auto width = static_cast<std::size_t>(folded.taps);
  double* row = folded.exact.reserve(static_cast<std::size_t>(pixels.count) * width);
  std::fill(row, row + static_cast<std::size_t>(pixels.count) * width, 0.0);
  for (std::int64_t i = 0; i < pixels.count; ++i, row += folded.taps) {
    const double* weight = pixels.exact.data() + i * pixels.taps;
    for (std::int64_t pixel = pixels.first.data()[i] + origin; pixel <= last(i); ++pixel, ++weight) {
      const Upsampled made(pixel, ratio, samples);
      row[made.nearest - first[i]] += interpolated ? 0.75 * *weight : *weight;
      if (interpolated) row[made.next - first[i]] += 0.25 * *weight;
    }
  }
}

bool PlaneResizer::choose_grids(const Sampling& sampling, Size size, int denominator) {
  count_ = static_cast<std::size_t>(sampling.components);
  if (count_ != 1 && count_ != 3) return false;
  for (std::size_t c = 0; c < count_; ++c) {
    grids_[c] = plane_grid(sampling, static_cast<int>(c), size, denominator);
    if (grids_[c].across == 0 || grids_[c].down == 0) return false;
  }
  return true;
}

bool PlaneResizer::prepare(const Pass& pass, const Sampling& sampling, Size size, int denominator) {
  if (!pass.resizes || pass.interpolation != Interpolation::bilinear) return false;
  const Window used = intersection(pass.output, whole(pass.resized));
  if (used.height == 0 || used.width == 0) return false;
  const bool all = pass.box.height == 0;
  const Stretch down = all ? pass.source.height : Stretch(pass.source.height, pass.box.top, pass.box.height);
  const Stretch across = all ? pass.source.width : Stretch(pass.source.width, pass.box.left, pass.box.width);
  if (across.extent > kWidest * static_cast<double>(pass.resized.width) ||
      tap_count(down, pass.resized.height, pass.interpolation, pass.antialias) > kFastTaps ||
      !choose_grids(sampling, size, denominator))
    return false;
  kernels_ = &plane_kernels();
  flipped_rows_ = pass.flipped_rows;
  inner_ = place(pass, used);
  rows_.compute(down, pass.resized.height, used.top, used.height, pass.interpolation, pass.antialias);
  columns_.compute(across, pass.resized.width, used.left, used.width, pass.interpolation, pass.antialias);
  part_ = {pass.source.top + rows_.low, pass.source.left + columns_.low, rows_.high - rows_.low,
           columns_.high - columns_.low};
  choose_weights(pass.source);
  rows_.round_fast();
  columns_.round_fast();
  if (pass.flipped) columns_.mirror();
  for (std::size_t c = 0; c < count_; ++c)
    if (components_[c].weights == c) round_weights(components_[c], pass.flipped);
  return true;
}

// Equal components share weights, and those of one sample a pixel are those of the pixels.
void PlaneResizer::choose_weights(const Window& source) {
  const auto choose = [](const Axis& pixels, std::int64_t origin, int ratio, bool interpolated,
                         std::int64_t samples, Direction& direction) {
    direction.axis = ratio == 1 ? &pixels : &direction.folded;
    direction.origin = ratio == 1 ? origin : 0;
    if (ratio != 1) fold(pixels, origin, ratio, interpolated, samples, direction.folded);
  };
  for (std::size_t c = 0; c < count_; ++c) {
    const PlaneGrid& grid = grids_[c];
    std::size_t same = 0;
    while (!(grids_[same] == grid)) ++same;
    components_[c].weights = same;
    if (same != c) continue;
    choose(rows_, source.top, grid.down, grid.interpolated, grid.size.height, components_[c].vertical);
    choose(columns_, source.left, grid.across, grid.interpolated, grid.size.width, components_[c].horizontal);
  }
}

void PlaneResizer::round_weights(Component& component, bool flipped) {
  Direction &vertical = component.vertical, &horizontal = component.horizontal;
  if (vertical.axis == &vertical.folded) vertical.folded.round_fast();
  if (horizontal.axis == &horizontal.folded) {
    horizontal.folded.round_fast();
    if (flipped) horizontal.folded.mirror();
  }
  component.pair_count = pair_weights(*vertical.axis, component.pairs);
  if (kernels_->uses_spread) component.spread.plan(*horizontal.axis);
}

void PlaneResizer::begin(const Planes& planes) {
  input_ = planes;
  for (std::size_t c = 0; c < count_; ++c) {
    const Component& weights = components_[components_[c].weights];
    const auto taps = static_cast<std::size_t>(2 * weights.pair_count);
    components_[c].rows.assign(std::bit_ceil(taps), -1);
    components_[c].middle.reserve(components_[c].rows.size() *
                                  static_cast<std::size_t>(inner_.width + kSampleStep));
  }
}

// Row `row` of a plane after the horizontal pass: made when it is first wanted, and kept while its neighbours
// are.
const std::int16_t* PlaneResizer::middle_row(std::size_t number, std::int64_t row) {
  Component& component = components_[number];
  const Direction& horizontal = components_[component.weights].horizontal;
  const Axis& axis = *horizontal.axis;
  const std::size_t slot = static_cast<std::size_t>(row) & (component.rows.size() - 1);
  std::int16_t* middle =
      component.middle.data() + slot * static_cast<std::size_t>(inner_.width + kSampleStep);
  if (component.rows[slot] == row) return middle;
  component.rows[slot] = row;
  const std::uint8_t* in = input_.views[number].at(row, horizontal.origin + axis.low, 1);
  kernels_->blend_plane(in, axis, components_[component.weights].spread, middle);
  return middle;
}

void PlaneResizer::resize_row(std::size_t number, std::int64_t row) {
  const Component& weights = components_[components_[number].weights];
  const Axis& axis = *weights.vertical.axis;
  const std::int32_t* pairs = weights.pairs.data() + row * weights.pair_count;
  int pair_count = weights.pair_count;
  while (pair_count > 1 && pairs[pair_count - 1] == 0) --pair_count;
  inputs_.resize(2 * static_cast<std::size_t>(pair_count));
  for (std::size_t k = 0; k < inputs_.size(); ++k) {
    // Past the last row the weights are zero.
    const std::int64_t at = std::min(axis.first.data()[row] + static_cast<std::int64_t>(k), axis.high - 1);
    inputs_[k] = middle_row(number, weights.vertical.origin + at);
  }
  const auto outputs = static_cast<std::size_t>(inner_.width);
  std::int16_t* samples = samples_[number].reserve(outputs + kSampleStep);
  kernels_->blend_samples(inputs_.data(), pairs, pair_count, outputs, samples);
}

void PlaneResizer::write_planar(std::uint8_t* out, std::size_t plane_stride) const {
  const auto pixels = static_cast<std::size_t>(inner_.width);
  const std::int16_t* samples[3] = {samples_[0].data(), samples_[1].data(), samples_[2].data()};
  if (count_ == 1) {
    kernels_->round(samples[0], pixels, out);
    for (std::size_t c = 1; c < 3; ++c) std::memcpy(out + c * plane_stride, out, pixels);
  } else if (input_.is_rgb) {
    for (std::size_t c = 0; c < 3; ++c) kernels_->round(samples[c], pixels, out + c * plane_stride);
  } else {
    kernels_->colour(samples, pixels, out, plane_stride);
  }
}

void PlaneResizer::write_row(std::int64_t row, std::uint8_t* out, const RowLayout& layout) {
  if (flipped_rows_) row = inner_.height - 1 - row;
  for (std::size_t c = 0; c < count_; ++c) resize_row(c, row);
  if (layout.planar) return write_planar(out, layout.plane_stride);
  const auto pixels = static_cast<std::size_t>(inner_.width);
  const std::size_t stride = pixels + 32;
  std::uint8_t* planar = planar_.reserve(3 * stride);
  write_planar(planar, stride);
  kernels_->interleave(planar, stride, pixels, out);
}

}  // namespace fastload::image

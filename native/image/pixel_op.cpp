#include "image/pixel_op.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/error.h"
#include "image/colour.h"
#include "image/erase.h"
#include "image/filter.h"
#include "image/policy.h"

namespace fastload::image {
namespace {

using Numbers = std::vector<double>;
using Work = std::function<void(Picture&, const Draws&, PixelScratch&)>;

class WorkOp final : public PixelOp {
 public:
  WorkOp(std::uint32_t index, Work work) : PixelOp(index), work_(std::move(work)) {}
  void apply(Picture& picture, const Draws& draws, PixelScratch& scratch) const override {
    work_(picture, draws, scratch);
  }

 private:
  Work work_;
};

class GrayscaleOp final : public PixelOp {
 public:
  GrayscaleOp(std::uint32_t index, int channels) : PixelOp(index), channels_(channels) {}
  int output_channels(int) const override { return channels_; }
  void apply(Picture& picture, const Draws&, PixelScratch& scratch) const override {
    grayscale(picture, channels_, scratch);
  }

 private:
  int channels_;
};

void require(bool condition, const OpSpec& spec) {
  if (!condition) throw Error(ErrorKind::usage, "image operation " + spec.name + " has numbers out of range");
}

bool is_integer(double number, double low, double high) {
  return number >= low && number <= high && number == std::floor(number);
}

double between(double low, double high, double uniform) { return low + uniform * (high - low); }

// `work` with probability `p`, by uniform 0.
Work sometimes(double p, std::function<void(Picture&, PixelScratch&)> work) {
  return [p, work = std::move(work)](Picture& picture, const Draws& draws, PixelScratch& scratch) {
    if (draws.uniform(0) < p) work(picture, scratch);
  };
}

// Operations whose last number is the probability and whose others are arguments.
Work parse_sometimes(const OpSpec& spec) {
  const auto& n = spec.numbers;
  const auto count = [&](std::size_t expected) {
    require(n.size() == expected && n.back() >= 0 && n.back() <= 1, spec);
  };
  if (spec.name == "random_grayscale") {
    count(1);
    return sometimes(
        n[0], [](Picture& picture, PixelScratch& scratch) { grayscale(picture, picture.channels, scratch); });
  }
  if (spec.name == "random_invert") {
    count(1);
    return sometimes(n[0],
                     [table = inverted()](Picture& picture, PixelScratch&) { look_up(picture, table); });
  }
  if (spec.name == "random_solarize") {
    count(2);
    return sometimes(n[1],
                     [table = solarized(n[0])](Picture& picture, PixelScratch&) { look_up(picture, table); });
  }
  if (spec.name == "random_posterize") {
    count(2);
    require(is_integer(n[0], 0, 8), spec);
    return sometimes(n[1], [table = posterized(static_cast<int>(n[0]))](Picture& picture, PixelScratch&) {
      look_up(picture, table);
    });
  }
  if (spec.name == "random_adjust_sharpness") {
    count(2);
    require(n[0] >= 0, spec);
    return sometimes(n[1], [factor = n[0]](Picture& picture, PixelScratch& scratch) {
      adjust_sharpness(picture, factor, scratch);
    });
  }
  if (spec.name == "random_autocontrast") {
    count(1);
    return sometimes(n[0], [](Picture& picture, PixelScratch&) { autocontrast(picture); });
  }
  if (spec.name == "random_equalize") {
    count(1);
    return sometimes(n[0], [](Picture& picture, PixelScratch&) { equalize(picture); });
  }
  return {};
}

// Numbers: low and high of brightness, contrast, saturation and hue; one that changes nothing is left out.
Work parse_color_jitter(const OpSpec& spec) {
  require(spec.numbers.size() == 8, spec);
  std::array<double, 8> n;
  std::copy_n(spec.numbers.begin(), 8, n.begin());
  for (std::size_t i = 0; i < 8; i += 2) require(n[i] <= n[i + 1] && (i == 6 || n[i] >= 0), spec);
  require(n[6] >= -0.5 && n[7] <= 0.5, spec);
  return [n](Picture& picture, const Draws& draws, PixelScratch& scratch) {
    std::array<std::uint32_t, 4> order = {0, 1, 2, 3};
    // Permutation number k of 24: its digits to the bases 4, 3, 2 say which of those left comes next.
    auto k = static_cast<std::uint32_t>(draws.integer(4, 24));
    for (std::uint32_t place = 0, count = 6; place < 3; ++place) {
      const auto first = order.begin() + place, next = first + k / count;
      std::rotate(first, next, next + 1);
      k %= count;
      count /= 3 - place;
    }
    for (const std::uint32_t which : order) {
      const double low = n[2 * which], high = n[2 * which + 1];
      if (low == high && low == (which == 3 ? 0.0 : 1.0)) continue;
      const double factor = between(low, high, draws.uniform(which));
      if (which == 0) adjust_brightness(picture, factor);
      if (which == 1) adjust_contrast(picture, factor, scratch);
      if (which == 2) adjust_saturation(picture, factor, scratch);
      if (which == 3) adjust_hue(picture, factor);
    }
  };
}

Work parse_gaussian_blur(const OpSpec& spec) {
  const auto& n = spec.numbers;
  require(n.size() == 4 && 0 < n[2] && n[2] <= n[3], spec);
  for (std::size_t i = 0; i < 2; ++i) require(is_integer((n[i] - 1) / 2, 0, (kMostTaps - 1) / 2), spec);
  const int width = static_cast<int>(n[0]), height = static_cast<int>(n[1]);
  return
      [width, height, low = n[2], high = n[3]](Picture& picture, const Draws& draws, PixelScratch& scratch) {
        gaussian_blur(picture, width, height, between(low, high, draws.uniform(0)), scratch);
      };
}

// The number of fill values (0: zeros, 1, or one for each channel) is at `at`, they follow.
Fill parse_fill(const OpSpec& spec, std::size_t at, int channels) {
  const auto& n = spec.numbers;
  require(n.size() > at && (n[at] == 0 || n[at] == 1 || n[at] == channels), spec);
  const auto count = static_cast<std::size_t>(n[at]);
  require(n.size() == at + 1 + count, spec);
  Fill fill{};
  for (std::size_t c = 0; c < fill.size() && count > 0; ++c) {
    const double value = n[at + 1 + c % count];
    require(value >= 0 && value <= 255, spec);
    fill[c] = static_cast<std::uint8_t>(value);
  }
  return fill;
}

Work parse_rand_augment(const OpSpec& spec, int channels) {
  const auto& n = spec.numbers;
  require(n.size() > 3 && is_integer(n[0], 0, 1000) && is_integer(n[2], 2, 100000), spec);
  require(is_integer(n[1], 0, n[2] - 1), spec);
  const int count = static_cast<int>(n[0]), magnitude = static_cast<int>(n[1]), bins = static_cast<int>(n[2]);
  return
      [=, fill = parse_fill(spec, 3, channels)](Picture& picture, const Draws& draws, PixelScratch& scratch) {
        rand_augment(picture, count, magnitude, bins, fill, draws, scratch);
      };
}

Work parse_trivial_augment(const OpSpec& spec, int channels) {
  const auto& n = spec.numbers;
  require(n.size() > 1 && is_integer(n[0], 2, 100000), spec);
  return [bins = static_cast<int>(n[0]), fill = parse_fill(spec, 1, channels)](
             Picture& picture, const Draws& draws, PixelScratch& scratch) {
    trivial_augment_wide(picture, bins, fill, draws, scratch);
  };
}

Work parse_erasing(const OpSpec& spec, std::uint32_t index, int channels) {
  return [erasing = Erasing(spec, index, channels)](Picture& picture, const Draws& draws, PixelScratch&) {
    auto* data = reinterpret_cast<std::byte*>(picture.data);
    erasing.erase({data, picture.size, picture.channels, ElementType::uint8, false}, draws);
  };
}

}  // namespace

std::unique_ptr<const PixelOp> parse_pixel_op(const OpSpec& spec, std::uint32_t index, int channels) {
  for (const double number : spec.numbers) require(std::isfinite(number), spec);
  if (spec.name == "grayscale") {
    require(spec.numbers.size() == 1 && (spec.numbers[0] == 1 || spec.numbers[0] == 3), spec);
    return std::make_unique<GrayscaleOp>(index, static_cast<int>(spec.numbers[0]));
  }
  Work work = parse_sometimes(spec);
  if (spec.name == "color_jitter") work = parse_color_jitter(spec);
  if (spec.name == "gaussian_blur") work = parse_gaussian_blur(spec);
  if (spec.name == "rand_augment") work = parse_rand_augment(spec, channels);
  if (spec.name == "trivial_augment_wide") work = parse_trivial_augment(spec, channels);
  if (spec.name == "random_erasing") work = parse_erasing(spec, index, channels);
  if (!work) return nullptr;
  return std::make_unique<WorkOp>(index, std::move(work));
}

}  // namespace fastload::image

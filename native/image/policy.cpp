#include "image/policy.h"

#include "image/colour.h"
#include "image/filter.h"
#include "image/series.h"
#include "image/warp.h"

namespace fastload::image {
namespace {

enum class Augmentation {
  identity,
  shear_x,
  shear_y,
  translate_x,
  translate_y,
  rotate,
  brightness,
  color,
  contrast,
  sharpness,
  posterize,
  solarize,
  autocontrast,
  equalize
};
constexpr std::int64_t kAugmentations = 14;

// The largest magnitudes of a policy.
struct Space {
  double shear;
  double translate_x;  // pixels
  double translate_y;
  double degrees;
  double colour;
  int posterize;  // bits taken away
};

// Entry `i` of `bins` numbers from `first` to `last`, as torch's linspace has it: ends and step are float32,
// the sum is rounded to float32 once.
double spaced(double first, double last, int bins, int i) {
  const auto low = static_cast<float>(first), high = static_cast<float>(last);
  const double step = static_cast<double>((high - low) / static_cast<float>(bins - 1));
  const double exact =
      i < bins / 2 ? static_cast<double>(low) + step * i : static_cast<double>(high) - step * (bins - 1 - i);
  return static_cast<double>(static_cast<float>(exact));
}

void augment(Picture& picture, Augmentation kind, const Space& space, int bins, int i, bool negative,
             const Fill& fill, PixelScratch& scratch) {
  const auto magnitude = [&](double most) {
    const double value = spaced(0.0, most, bins, i);
    return negative ? -value : value;
  };
  const auto height = static_cast<double>(picture.size.height),
             width = static_cast<double>(picture.size.width);
  switch (kind) {
    case Augmentation::identity:
      return;
    case Augmentation::shear_x: {
      const double shear = magnitude(space.shear);
      return warp_nearest(picture, {1.0, shear, shear * (height * 0.5), 0.0, 1.0, 0.0}, fill, scratch);
    }
    case Augmentation::shear_y: {
      const double shear = magnitude(space.shear);
      return warp_nearest(picture, {1.0, 0.0, 0.0, shear, 1.0, shear * (width * 0.5)}, fill, scratch);
    }
    case Augmentation::translate_x:
      return warp_nearest(picture, {1.0, 0.0, -std::trunc(magnitude(space.translate_x)), 0.0, 1.0, 0.0}, fill,
                          scratch);
    case Augmentation::translate_y:
      return warp_nearest(picture, {1.0, 0.0, 0.0, 0.0, 1.0, -std::trunc(magnitude(space.translate_y))}, fill,
                          scratch);
    case Augmentation::rotate: {
      const double turns = magnitude(space.degrees) / 180.0;
      const double sine = sine_pi(turns), cosine = sine_pi(turns + 0.5);
      return warp_nearest(picture, {cosine, -sine, 0.0, sine, cosine, 0.0}, fill, scratch);
    }
    case Augmentation::brightness:
      return adjust_brightness(picture, 1.0 + magnitude(space.colour));
    case Augmentation::color:
      return adjust_saturation(picture, 1.0 + magnitude(space.colour), scratch);
    case Augmentation::contrast:
      return adjust_contrast(picture, 1.0 + magnitude(space.colour), scratch);
    case Augmentation::sharpness:
      return adjust_sharpness(picture, 1.0 + magnitude(space.colour), scratch);
    case Augmentation::posterize: {
      const auto each = static_cast<float>(static_cast<double>(bins - 1) / space.posterize);
      const float bits = 8.0f - static_cast<float>(i) / each;
      return look_up(picture, posterized(static_cast<int>(round_half_even(static_cast<double>(bits)))));
    }
    case Augmentation::solarize:
      return look_up(picture, solarized(255.0 * spaced(1.0, 0.0, bins, i)));
    case Augmentation::autocontrast:
      return autocontrast(picture);
    case Augmentation::equalize:
      return equalize(picture);
  }
}

}  // namespace

void rand_augment(Picture& picture, int count, int magnitude, int bins, const Fill& fill, const Draws& draws,
                  PixelScratch& scratch) {
  const Space space{0.3,
                    150.0 / 331.0 * static_cast<double>(picture.size.width),
                    150.0 / 331.0 * static_cast<double>(picture.size.height),
                    30.0,
                    0.9,
                    4};
  for (int k = 0; k < count; ++k) {
    const auto first = static_cast<std::uint32_t>(3 * k);
    const auto kind = static_cast<Augmentation>(draws.integer(first, kAugmentations));
    augment(picture, kind, space, bins, magnitude, draws.uniform(first + 2) <= 0.5, fill, scratch);
  }
}

void trivial_augment_wide(Picture& picture, int bins, const Fill& fill, const Draws& draws,
                          PixelScratch& scratch) {
  const Space space{0.99, 32.0, 32.0, 135.0, 0.99, 6};
  const auto kind = static_cast<Augmentation>(draws.integer(0, kAugmentations));
  augment(picture, kind, space, bins, static_cast<int>(draws.integer(1, bins)), draws.uniform(2) <= 0.5, fill,
          scratch);
}

}  // namespace fastload::image

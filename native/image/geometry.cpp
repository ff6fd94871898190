#include "image/geometry.h"

#include <algorithm>
#include <cmath>

#include "core/error.h"
#include "core/philox.h"
#include "image/jpeg.h"

namespace fastload::image {
namespace {

constexpr double kMaxSide = 1 << 20;

// Python's round(): half to even. std::nearbyint does so in the default rounding mode, which a program may
// change; this does not depend on it.
std::int64_t round_half_even(double x) {
  const double below = std::floor(x);
  const double rest = x - below;
  auto result = static_cast<std::int64_t>(below);
  if (rest > 0.5 || (rest == 0.5 && result % 2 != 0)) ++result;
  return result;
}

void require(bool condition, const OpSpec& spec) {
  if (!condition) throw Error(ErrorKind::usage, "image operation " + spec.name + " has numbers out of range");
}

bool is_side(double number) { return number >= 1 && number <= kMaxSide && number == std::floor(number); }

Size short_side_size(const std::vector<double>& numbers, Size size) {
  const bool tall = size.width <= size.height;
  const auto short_side = static_cast<double>(tall ? size.width : size.height);
  const auto long_side = static_cast<double>(tall ? size.height : size.width);
  const double wanted = numbers[1], limit = numbers[3];
  double new_short, new_long;
  if (wanted == 0) {
    new_short = std::trunc(limit * short_side / long_side);
    new_long = limit;
  } else {
    new_short = wanted;
    new_long = std::trunc(wanted * long_side / short_side);
    if (limit != 0 && new_long > limit) {
      new_short = std::trunc(limit * new_short / new_long);
      new_long = limit;
    }
  }
  new_short = std::max(new_short, 1.0);
  if (new_short * new_long > static_cast<double>(kMaxPixels))
    throw Error(ErrorKind::decode, "an image of " + std::to_string(size.width) + " x " +
                                       std::to_string(size.height) +
                                       " pixels would be resized to more than " + std::to_string(kMaxPixels));
  const auto a = static_cast<std::int64_t>(new_short), b = static_cast<std::int64_t>(new_long);
  return tall ? Size{b, a} : Size{a, b};
}

std::int64_t center(std::int64_t image, std::int64_t crop) {
  return image >= crop ? round_half_even(static_cast<double>(image - crop) / 2.0) : -((crop - image) / 2);
}

Window random_crop(const std::vector<double>& numbers, Size size, const Draws& draws) {
  const auto height = static_cast<double>(size.height), width = static_cast<double>(size.width);
  const double area = static_cast<double>(size.height * size.width);
  const double low = numbers[4], high = numbers[5];
  for (std::uint32_t attempt = 0; attempt < 40; attempt += 4) {
    const double target = area * (numbers[2] + draws.uniform(attempt) * (numbers[3] - numbers[2]));
    const double aspect = exponential(low + draws.uniform(attempt + 1) * (high - low));
    const double crop_width = std::sqrt(target * aspect), crop_height = std::sqrt(target / aspect);
    if (!(crop_width < width + 1 && crop_height < height + 1)) continue;
    const std::int64_t w = round_half_even(crop_width), h = round_half_even(crop_height);
    if (0 < w && w <= size.width && 0 < h && h <= size.height) {
      const std::int64_t top = draws.integer(attempt + 2, size.height - h + 1);
      return {top, draws.integer(attempt + 3, size.width - w + 1), h, w};
    }
  }
  Window crop = whole(size);
  const double ratio = width / height;
  if (ratio < exponential(low)) {
    crop.height = std::clamp<std::int64_t>(round_half_even(width / exponential(low)), 1, size.height);
  } else if (ratio > exponential(high)) {
    crop.width = std::clamp<std::int64_t>(round_half_even(height * exponential(high)), 1, size.width);
  }
  crop.top = (size.height - crop.height) / 2;
  crop.left = (size.width - crop.width) / 2;
  return crop;
}

// Builds passes one operation at a time, beginning a new pass only where the last cannot take the operation
// in.
class Builder {
 public:
  Builder(Size size, std::vector<Pass>& passes) : passes_(passes) {
    passes_.clear();
    begin(size);
  }

  Size size() const { return {passes_.back().output.height, passes_.back().output.width}; }

  void cut(Window window) {
    // A window that reaches outside gets zeros; pixels an earlier cut took away must not come back there.
    if (!inside(window, size()) && !(passes_.back().output == whole(passes_.back().resized))) begin(size());
    Pass& pass = passes_.back();
    if (pass.flipped) window.left = pass.output.width - window.right();
    pass.output = {pass.output.top + window.top, pass.output.left + window.left, window.height, window.width};
  }

  void resize(Size target, Interpolation interpolation, bool antialias) {
    if (target == size()) return;
    // Mirroring first is not the same: filters are not symmetric to the last bit.
    if (passes_.back().resizes || passes_.back().flipped ||
        !inside(passes_.back().output, passes_.back().resized))
      begin(size());
    Pass& pass = passes_.back();
    pass.source = pass.output;
    pass.resizes = true;
    pass.resized = target;
    pass.interpolation = interpolation;
    pass.antialias = antialias;
    pass.output = whole(target);
  }

  void flip() { passes_.back().flipped = !passes_.back().flipped; }

 private:
  void begin(Size size) {
    Pass pass;
    pass.source = whole(size);
    pass.resized = size;
    pass.output = whole(size);
    passes_.push_back(pass);
  }

  std::vector<Pass>& passes_;
};

Interpolation interpolation_of(double number) { return static_cast<Interpolation>(static_cast<int>(number)); }

void check_interpolation(const OpSpec& spec, double interpolation, double antialias) {
  require(interpolation >= 0 && interpolation <= 3 && interpolation == std::floor(interpolation), spec);
  require(antialias == 1 || (antialias == 0 && interpolation <= 1), spec);
}

}  // namespace

Window intersection(const Window& a, const Window& b) {
  Window result;
  result.top = std::max(a.top, b.top);
  result.left = std::max(a.left, b.left);
  result.height = std::max<std::int64_t>(std::min(a.bottom(), b.bottom()) - result.top, 0);
  result.width = std::max<std::int64_t>(std::min(a.right(), b.right()) - result.left, 0);
  return result;
}

double exponential(double x) {
  int halvings = 0;
  while (std::abs(x) > 0.5) {
    x *= 0.5;
    ++halvings;
  }
  double value = 1.0;
  for (int n = 18; n > 0; --n) value = value * x / n + 1.0;
  for (; halvings > 0; --halvings) value *= value;
  return value;
}

bool is_geometry(const OpSpec& spec) {
  return spec.name == "resize" || spec.name == "center_crop" || spec.name == "random_resized_crop" ||
         spec.name == "random_horizontal_flip";
}

GeometryOp parse_geometry(const OpSpec& spec, std::uint32_t index) {
  const auto& n = spec.numbers;
  for (const double number : n) require(std::isfinite(number), spec);
  if (spec.name == "resize") {
    require(n.size() == 6, spec);
    const bool exact = n[0] == 1;
    require(exact ? is_side(n[1]) && is_side(n[2]) && n[3] == 0 : n[0] == 0 && n[2] == 0, spec);
    if (!exact)
      require((n[1] == 0 || is_side(n[1])) && (n[3] == 0 || is_side(n[3])) && n[1] + n[3] > 0, spec);
    check_interpolation(spec, n[4], n[5]);
    return {GeometryKind::resize, n, index};
  }
  if (spec.name == "center_crop") {
    require(n.size() == 2 && is_side(n[0]) && is_side(n[1]), spec);
    return {GeometryKind::center_crop, n, index};
  }
  if (spec.name == "random_resized_crop") {
    require(n.size() == 8 && is_side(n[0]) && is_side(n[1]), spec);
    require(0 < n[2] && n[2] <= n[3] && n[4] <= n[5] && std::abs(n[4]) < 700 && std::abs(n[5]) < 700, spec);
    check_interpolation(spec, n[6], n[7]);
    return {GeometryKind::random_resized_crop, n, index};
  }
  require(n.size() == 1 && n[0] >= 0 && n[0] <= 1, spec);
  return {GeometryKind::random_horizontal_flip, n, index};
}

void resolve(std::span<const GeometryOp> ops, Size size, const SampleKey& key, std::uint32_t group,
             std::vector<Pass>& passes) {
  Builder builder(size, passes);
  for (const GeometryOp& op : ops) {
    const Draws draws(key.seed, key.epoch, key.position, group, op.index);
    const auto& n = op.numbers;
    const auto pair = [&n](std::size_t first) {
      return Size{static_cast<std::int64_t>(n[first]), static_cast<std::int64_t>(n[first + 1])};
    };
    switch (op.kind) {
      case GeometryKind::resize:
        builder.resize(n[0] == 1 ? pair(1) : short_side_size(n, builder.size()), interpolation_of(n[4]),
                       n[5] != 0);
        break;
      case GeometryKind::center_crop: {
        const Size crop = pair(0), image = builder.size();
        builder.cut(
            {center(image.height, crop.height), center(image.width, crop.width), crop.height, crop.width});
        break;
      }
      case GeometryKind::random_resized_crop:
        builder.cut(random_crop(n, builder.size(), draws));
        builder.resize(pair(0), interpolation_of(n[6]), n[7] != 0);
        break;
      case GeometryKind::random_horizontal_flip:
        if (draws.uniform(0) < n[0]) builder.flip();
        break;
    }
  }
}

}  // namespace fastload::image

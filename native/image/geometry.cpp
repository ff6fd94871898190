#include "image/geometry.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <string_view>
#include <utility>

#include "core/error.h"
#include "core/philox.h"
#include "image/jpeg.h"
#include "image/series.h"

namespace fastload::image {
namespace {

constexpr double kMaxSide = 1 << 20;

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

bool is_padding(double number) { return number >= 0 && number <= kMaxSide && number == std::floor(number); }

// The fill values that begin at `at`: their number (1, or one for each channel), then each.
void check_fill(const OpSpec& spec, std::size_t at, int channels) {
  const auto& n = spec.numbers;
  require(n.size() > at && (n[at] == 1 || n[at] == channels), spec);
  require(n.size() == at + 1 + static_cast<std::size_t>(n[at]), spec);
  for (std::size_t i = at + 1; i < n.size(); ++i) require(n[i] >= 0 && n[i] <= 255, spec);
}

std::array<std::uint8_t, 3> fill_of(const std::vector<double>& numbers, std::size_t at) {
  const auto count = static_cast<std::size_t>(numbers[at]);
  std::array<std::uint8_t, 3> fill{};
  for (std::size_t c = 0; c < fill.size(); ++c)
    fill[c] = static_cast<std::uint8_t>(numbers[at + 1 + c % count]);
  return fill;
}

void check_pixels(Size size) {
  if (size.height > kMaxPixels / size.width)
    throw Error(ErrorKind::decode, "an image would be padded to " + std::to_string(size.width) + " x " +
                                       std::to_string(size.height) + " pixels, more than " +
                                       std::to_string(kMaxPixels));
}

// Numbers of a random crop: height, width, padding (left, top, right, bottom), whether more padding is added
// where the image is too small, fill.
Window padded_crop(const std::vector<double>& numbers, Size size, const Draws& draws) {
  const auto number = [&numbers](std::size_t i) { return static_cast<std::int64_t>(numbers[i]); };
  const std::int64_t height = number(0), width = number(1);
  std::int64_t before_x = number(2), before_y = number(3);
  std::int64_t padded_width = size.width + before_x + number(4),
               padded_height = size.height + before_y + number(5);
  if (number(6) != 0) {
    const std::int64_t more_x = std::max<std::int64_t>(width - padded_width, 0),
                       more_y = std::max<std::int64_t>(height - padded_height, 0);
    before_x += more_x;
    before_y += more_y;
    padded_width += 2 * more_x;
    padded_height += 2 * more_y;
  }
  if (padded_width < width || padded_height < height)
    throw Error(ErrorKind::decode, "RandomCrop cannot cut " + std::to_string(width) + " x " +
                                       std::to_string(height) + " pixels out of an image of " +
                                       std::to_string(padded_width) + " x " + std::to_string(padded_height) +
                                       " (set pad_if_needed=True)");
  const std::int64_t top = draws.integer(0, padded_height - height + 1);
  return {top - before_y, draws.integer(1, padded_width - width + 1) - before_x, height, width};
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

  void cut(Window window, std::array<std::uint8_t, 3> fill = {}) {
    // A window that reaches outside gets `fill`; pixels an earlier cut took away must not come back there.
    const bool outside = !inside(window, size());
    if (outside && !(passes_.back().output == whole(passes_.back().resized))) begin(size());
    Pass& pass = passes_.back();
    if (outside) pass.fill = fill;
    if (pass.flipped) window.left = pass.output.width - window.right();
    if (pass.flipped_rows) window.top = pass.output.height - window.bottom();
    pass.output = {pass.output.top + window.top, pass.output.left + window.left, window.height, window.width};
  }

  void resize(Size target, Interpolation interpolation, bool antialias) {
    if (target == size()) return;
    // Mirroring first is not the same: filters are not symmetric to the last bit.
    if (passes_.back().resizes || passes_.back().flipped || passes_.back().flipped_rows ||
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
  void flip_rows() { passes_.back().flipped_rows = !passes_.back().flipped_rows; }

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

namespace {

std::optional<GeometryKind> kind_of(std::string_view name) {
  static constexpr std::pair<std::string_view, GeometryKind> kinds[] = {
      {"resize", GeometryKind::resize},
      {"center_crop", GeometryKind::center_crop},
      {"random_resized_crop", GeometryKind::random_resized_crop},
      {"random_crop", GeometryKind::random_crop},
      {"pad", GeometryKind::pad},
      {"random_horizontal_flip", GeometryKind::random_horizontal_flip},
      {"random_vertical_flip", GeometryKind::random_vertical_flip},
  };
  for (const auto& [known, kind] : kinds)
    if (known == name) return kind;
  return std::nullopt;
}

void check_resize(const OpSpec& spec) {
  const auto& n = spec.numbers;
  require(n.size() == 6, spec);
  const bool exact = n[0] == 1;
  require(exact ? is_side(n[1]) && is_side(n[2]) && n[3] == 0 : n[0] == 0 && n[2] == 0, spec);
  if (!exact) require((n[1] == 0 || is_side(n[1])) && (n[3] == 0 || is_side(n[3])) && n[1] + n[3] > 0, spec);
  check_interpolation(spec, n[4], n[5]);
}

void check_numbers(GeometryKind kind, const OpSpec& spec, int channels) {
  const auto& n = spec.numbers;
  for (const double number : n) require(std::isfinite(number), spec);
  switch (kind) {
    case GeometryKind::resize:
      return check_resize(spec);
    case GeometryKind::center_crop:
      return require(n.size() == 2 && is_side(n[0]) && is_side(n[1]), spec);
    case GeometryKind::random_resized_crop:
      require(n.size() == 8 && is_side(n[0]) && is_side(n[1]), spec);
      require(0 < n[2] && n[2] <= n[3] && n[4] <= n[5] && std::abs(n[4]) < 700 && std::abs(n[5]) < 700, spec);
      return check_interpolation(spec, n[6], n[7]);
    case GeometryKind::random_crop:
      require(n.size() > 7 && is_side(n[0]) && is_side(n[1]), spec);
      for (std::size_t i = 2; i < 6; ++i) require(is_padding(n[i]), spec);
      require(n[6] == 0 || n[6] == 1, spec);
      return check_fill(spec, 7, channels);
    case GeometryKind::pad:
      require(n.size() > 4, spec);
      for (std::size_t i = 0; i < 4; ++i) require(is_padding(n[i]), spec);
      return check_fill(spec, 4, channels);
    case GeometryKind::random_horizontal_flip:
    case GeometryKind::random_vertical_flip:
      return require(n.size() == 1 && n[0] >= 0 && n[0] <= 1, spec);
  }
}

}  // namespace

bool is_geometry(const OpSpec& spec) { return kind_of(spec.name).has_value(); }

GeometryOp parse_geometry(const OpSpec& spec, std::uint32_t index, int channels) {
  const auto kind = kind_of(spec.name);
  require(kind.has_value(), spec);
  check_numbers(*kind, spec, channels);
  return {*kind, spec.numbers, index};
}

Size size_after(const GeometryOp& op, Size size) {
  const auto number = [&op](std::size_t i) { return static_cast<std::int64_t>(op.numbers[i]); };
  switch (op.kind) {
    case GeometryKind::resize:
      return number(0) == 1 ? Size{number(1), number(2)} : short_side_size(op.numbers, size);
    case GeometryKind::center_crop:
    case GeometryKind::random_resized_crop:
    case GeometryKind::random_crop:
      return {number(0), number(1)};
    case GeometryKind::pad: {
      const Size padded = {size.height + number(1) + number(3), size.width + number(0) + number(2)};
      check_pixels(padded);
      return padded;
    }
    case GeometryKind::random_horizontal_flip:
    case GeometryKind::random_vertical_flip:
      break;
  }
  return size;
}

void resolve(std::span<const GeometryOp> ops, Size size, const SampleKey& key, std::uint32_t group,
             std::vector<Pass>& passes) {
  Builder builder(size, passes);
  for (const GeometryOp& op : ops) {
    const Draws draws(key.seed, key.epoch, key.position, group, op.index);
    const auto& n = op.numbers;
    const Size before = builder.size(), after = size_after(op, before);
    switch (op.kind) {
      case GeometryKind::resize:
        builder.resize(after, interpolation_of(n[4]), n[5] != 0);
        break;
      case GeometryKind::center_crop:
        builder.cut({center(before.height, after.height), center(before.width, after.width), after.height,
                     after.width});
        break;
      case GeometryKind::random_resized_crop:
        builder.cut(random_crop(n, before, draws));
        builder.resize(after, interpolation_of(n[6]), n[7] != 0);
        break;
      case GeometryKind::random_crop:
        builder.cut(padded_crop(n, before, draws), fill_of(n, 7));
        break;
      case GeometryKind::pad:
        builder.cut(
            {-static_cast<std::int64_t>(n[1]), -static_cast<std::int64_t>(n[0]), after.height, after.width},
            fill_of(n, 4));
        break;
      case GeometryKind::random_horizontal_flip:
        if (draws.uniform(0) < n[0]) builder.flip();
        break;
      case GeometryKind::random_vertical_flip:
        if (draws.uniform(0) < n[0]) builder.flip_rows();
        break;
    }
  }
}

}  // namespace fastload::image

#include "image/erase.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <type_traits>

#include "core/error.h"
#include "image/kernels.h"
#include "image/series.h"

namespace fastload::image {
namespace {

// Natural logarithm of x in (0, 1], by the series of fastload/transforms/erasing.py.
double logarithm(double x) {
  int exponent = 0;
  double mantissa = std::frexp(x, &exponent);
  if (mantissa < 0.7071067811865476) {
    mantissa *= 2.0;
    --exponent;
  }
  const double z = (mantissa - 1.0) / (mantissa + 1.0), square = z * z;
  double value = 0.0;
  for (int n = 21; n > 0; n -= 2) value = value * square + 1.0 / n;
  return exponent * 0.6931471805599453 + 2.0 * z * value;
}

// A sequence of random values: four normal deviates, or 16 bytes, of each block.
class Noise {
 public:
  explicit Noise(std::uint64_t seed)
      : key_{static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32)} {}

  float normal() {
    if (at_ % 4 == 0) {
      const auto words = next();
      for (std::size_t i = 0; i < 4; i += 2) {
        const double radius = std::sqrt(-2.0 * logarithm((words[i] + 1.0) * 0x1p-32));
        const double turn = words[i + 1] * 0x1p-31;  // in units of pi
        normals_[i] = static_cast<float>(radius * sine_pi(turn + 0.5));
        normals_[i + 1] = static_cast<float>(radius * sine_pi(turn));
      }
    }
    return normals_[at_++ % 4];
  }

  std::uint8_t byte() {
    if (at_ % 16 == 0) words_ = next();
    const std::uint8_t value = static_cast<std::uint8_t>(words_[at_ % 16 / 4] >> (at_ % 4 * 8));
    ++at_;
    return value;
  }

 private:
  std::array<std::uint32_t, 4> next() { return philox4x32({block_++, 0, 0, 0}, key_); }

  std::array<std::uint32_t, 2> key_;
  std::uint32_t block_ = 0;
  std::size_t at_ = 0;
  std::array<float, 4> normals_{};
  std::array<std::uint32_t, 4> words_{};
};

template <typename Element>
Element convert(float value, ElementType type) {
  if constexpr (std::is_same_v<Element, std::uint8_t>)
    return static_cast<std::uint8_t>(std::clamp(value, 0.0f, 255.0f));
  else if constexpr (std::is_same_v<Element, float>)
    return value;
  else
    return type == ElementType::float16 ? to_float16(value) : to_bfloat16(value);
}

}  // namespace

Erasing::Erasing(const OpSpec& spec, std::uint32_t index, int channels) : index_(index) {
  const auto& n = spec.numbers;
  const auto require = [](bool condition) {
    if (!condition) throw Error(ErrorKind::usage, "image operation random_erasing has numbers out of range");
  };
  for (const double number : n) require(std::isfinite(number));
  require(n.size() >= 6 && n[0] >= 0 && n[0] <= 1 && 0 <= n[1] && n[1] <= n[2] && n[2] <= 1 && n[3] <= n[4]);
  require(std::abs(n[3]) < 300 && std::abs(n[4]) < 300 && (n[5] == 0 || n[5] == 1 || n[5] == channels));
  const auto count = static_cast<std::size_t>(n[5]);
  require(n.size() == 6 + count);
  probability_ = n[0];
  scale_ = {n[1], n[2]};
  log_ratio_ = {n[3], n[4]};
  random_ = count == 0;
  for (std::size_t c = 0; c < values_.size() && count > 0; ++c) {
    values_[c] = static_cast<float>(n[6 + c % count]);
    require(std::isfinite(values_[c]));
  }
}

std::optional<Window> Erasing::draw(Size size, const Draws& draws) const {
  const double area = static_cast<double>(size.height * size.width);
  for (std::uint32_t attempt = 1; attempt < 41; attempt += 4) {
    const double target = area * (scale_[0] + draws.uniform(attempt) * (scale_[1] - scale_[0]));
    const double aspect =
        exponential(log_ratio_[0] + draws.uniform(attempt + 1) * (log_ratio_[1] - log_ratio_[0]));
    const double exact_height = std::sqrt(target * aspect), exact_width = std::sqrt(target / aspect);
    if (!(exact_height < static_cast<double>(size.height) && exact_width < static_cast<double>(size.width)))
      continue;
    const std::int64_t height = round_half_even(exact_height), width = round_half_even(exact_width);
    if (height >= size.height || width >= size.width) continue;
    const std::int64_t top = draws.integer(attempt + 2, size.height - height + 1);
    return Window{top, draws.integer(attempt + 3, size.width - width + 1), height, width};
  }
  return std::nullopt;
}

void Erasing::erase(const Target& target, const Draws& draws) const {
  if (!(draws.uniform(0) < probability_)) return;
  const auto window = draw(target.size, draws);
  if (!window) return;
  const auto noise = static_cast<std::uint64_t>(draws.uniform(64) * 0x1p53);
  switch (target.type) {
    case ElementType::uint8:
      return fill<std::uint8_t>(target, *window, noise);
    case ElementType::float32:
      return fill<float>(target, *window, noise);
    case ElementType::float16:
    case ElementType::bfloat16:
      return fill<std::uint16_t>(target, *window, noise);
  }
}

template <typename Element>
void Erasing::fill(const Target& target, const Window& window, std::uint64_t seed) const {
  Noise noise(seed);
  std::array<Element, 3> values{};
  for (std::size_t c = 0; c < values.size(); ++c) values[c] = convert<Element>(values_[c], target.type);
  const auto height = static_cast<std::size_t>(target.size.height),
             width = static_cast<std::size_t>(target.size.width),
             channels = static_cast<std::size_t>(target.channels);
  for (auto y = static_cast<std::size_t>(window.top); y < static_cast<std::size_t>(window.bottom()); ++y)
    for (auto x = static_cast<std::size_t>(window.left); x < static_cast<std::size_t>(window.right()); ++x)
      for (std::size_t c = 0; c < channels; ++c) {
        Element value = values[c];
        if (random_) {
          if constexpr (std::is_same_v<Element, std::uint8_t>)
            value = noise.byte();
          else
            value = convert<Element>(noise.normal(), target.type);
        }
        const std::size_t at = target.planar ? (c * height + y) * width + x : (y * width + x) * channels + c;
        std::memcpy(target.data + at * sizeof(Element), &value, sizeof(Element));
      }
}

}  // namespace fastload::image

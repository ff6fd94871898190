#include "image/colour.h"

#include <algorithm>
#include <cstring>

#include "image/kernels.h"
#include "image/vectorise.h"

namespace fastload::image {
namespace {

// 0.2989, 0.587 and 0.114 in units of 2^-22.
constexpr std::int32_t kRed = 1253677, kGreen = 2462056, kBlue = 478151;
constexpr std::size_t kBlock = 64;  // pixels held beside the picture

struct Luma {
  static FASTLOAD_INLINE void run(const std::uint8_t* in, std::size_t pixels, std::uint8_t* out) {
    for (std::size_t i = 0; i < pixels; ++i)
      out[i] = static_cast<std::uint8_t>(
          (in[3 * i] * kRed + in[3 * i + 1] * kGreen + in[3 * i + 2] * kBlue) >> 22);
  }
};

// The luma of an RGB picture, in the scratch.
const std::uint8_t* luma_of(const Picture& picture, PixelScratch& scratch) {
  std::uint8_t* luma = scratch.luma.reserve(picture.pixels());
  vectorised<Luma>(static_cast<const std::uint8_t*>(picture.data), picture.pixels(), luma);
  return luma;
}

Table identity() {
  Table table;
  for (std::size_t value = 0; value < 256; ++value) table[value] = static_cast<std::uint8_t>(value);
  return table;
}

// trunc(x * own + other) for each value.
void blend_all(Picture& picture, float own, float other) {
  if (simd() != Simd::plain) return kernels().mix(picture.data, nullptr, picture.bytes(), own, other);
  Table table = identity();
  kernels().mix(table.data(), nullptr, table.size(), own, other);
  look_up(picture, table);
}

// Turns the hue of RGB values in [0, 1]. Conditions choose values, never paths: the compiler makes lanes of
// it.
FASTLOAD_INLINE void turn_hue(float& red, float& green, float& blue, float turn) {
  const float r = red, g = green, b = blue;
  float high = r > g ? r : g, low = r < g ? r : g;
  high = high > b ? high : b;
  low = low < b ? low : b;
  const bool gray = high == low;
  const float range = high - low, divisor = gray ? 1.0f : range;
  const float saturation = range / (gray ? 1.0f : high);
  const float rc = (high - r) / divisor, gc = (high - g) / divisor, bc = (high - b) / divisor;
  const float from_green = (rc + 2.0f) - bc, from_blue = (gc + 4.0f) - rc;
  const float other = high == g ? from_green : from_blue;
  float hue = (high == r ? bc - gc : other) * (1.0f / 6.0f) + 1.0f;
  hue = hue >= 1.0f ? hue - 1.0f : hue;
  hue = hue + turn;
  hue = hue < 0.0f ? hue + 1.0f : hue;
  hue = hue >= 1.0f ? hue - 1.0f : hue;
  const float sixth = hue * 6.0f;
  const auto sector = static_cast<std::int32_t>(sixth);
  const float part = (sixth - static_cast<float>(sector)) * saturation, rest = 1.0f - saturation;
  const float p = rest * high, q = (1.0f - part) * high, t = (part + rest) * high;
  // Sectors 0 to 5; 6, a rounding away, is 0.
  red = high, green = p, blue = p;
  red = sector == 1 ? q : red;
  red = sector == 2 ? p : red;
  red = sector == 3 ? p : red;
  red = sector == 4 ? t : red;
  green = sector == 0 ? t : green;
  green = sector == 1 ? high : green;
  green = sector == 2 ? high : green;
  green = sector == 3 ? q : green;
  green = sector == 6 ? t : green;
  blue = sector == 2 ? t : blue;
  blue = sector == 3 ? high : blue;
  blue = sector == 4 ? high : blue;
  blue = sector == 5 ? q : blue;
}

struct Hue {
  static FASTLOAD_INLINE void run(std::uint8_t* data, std::size_t pixels, float turn) {
    float red[kBlock], green[kBlock], blue[kBlock];
    for (std::size_t from = 0; from < pixels; from += kBlock, data += 3 * kBlock) {
      const std::size_t count = std::min(kBlock, pixels - from);
      for (std::size_t i = 0; i < kBlock; ++i) {
        const std::size_t at = 3 * (i < count ? i : 0);
        red[i] = static_cast<float>(data[at]) * (1.0f / 255.0f);
        green[i] = static_cast<float>(data[at + 1]) * (1.0f / 255.0f);
        blue[i] = static_cast<float>(data[at + 2]) * (1.0f / 255.0f);
      }
      for (std::size_t i = 0; i < kBlock; ++i) turn_hue(red[i], green[i], blue[i], turn);
      for (std::size_t i = 0; i < count; ++i) {
        data[3 * i] = truncate(red[i] * 255.999f);
        data[3 * i + 1] = truncate(green[i] * 255.999f);
        data[3 * i + 2] = truncate(blue[i] * 255.999f);
      }
    }
  }
};

using Histogram = std::array<std::uint32_t, 256>;

// How often each value occurs in each channel.
std::array<Histogram, 3> histograms(const Picture& picture) {
  std::array<Histogram, 3> counts{};
  const auto channels = static_cast<std::size_t>(picture.channels);
  for (std::size_t i = 0; i < picture.pixels(); ++i)
    for (std::size_t c = 0; c < channels; ++c) ++counts[c][picture.data[i * channels + c]];
  return counts;
}

Table stretched(const Histogram& counts) {
  std::size_t low = 0, high = 255;
  while (counts[low] == 0) ++low;
  while (counts[high] == 0) --high;
  if (low == high) return identity();
  Table table;
  const auto first = static_cast<float>(low);
  const float scale = (static_cast<float>(high) - first) * (1.0f / 255.0f);
  for (std::size_t value = 0; value < 256; ++value)
    table[value] = truncate((static_cast<float>(value) - first) / scale);
  return table;
}

Table flattened(const Histogram& counts, std::size_t pixels) {
  std::size_t last = 255;
  while (counts[last] == 0) --last;
  const std::size_t step = (pixels - counts[last]) / 255;
  if (step == 0) return identity();
  Table table;
  std::size_t below = step / 2;
  for (std::size_t value = 0; value < 256; ++value) {
    table[value] = static_cast<std::uint8_t>(std::min<std::size_t>(below / step, 255));
    below += counts[value];
  }
  return table;
}

}  // namespace

void look_up(Picture& picture, const Table& table) {
  const std::size_t bytes = picture.bytes();
  for (std::size_t i = 0; i < bytes; ++i) picture.data[i] = table[picture.data[i]];
}

void look_up(Picture& picture, const std::array<Table, 3>& tables) {
  if (picture.channels == 1) return look_up(picture, tables[0]);
  std::uint8_t* data = picture.data;
  for (std::size_t i = 0; i < picture.pixels(); ++i, data += 3)
    for (std::size_t c = 0; c < 3; ++c) data[c] = tables[c][data[c]];
}

Table inverted() {
  Table table;
  for (std::size_t value = 0; value < 256; ++value) table[value] = static_cast<std::uint8_t>(255 - value);
  return table;
}

Table posterized(int bits) {
  Table table;
  const std::size_t mask = 0xFF00u >> bits & 0xFFu;
  for (std::size_t value = 0; value < 256; ++value) table[value] = static_cast<std::uint8_t>(value & mask);
  return table;
}

Table solarized(double threshold) {
  Table table;
  for (std::size_t value = 0; value < 256; ++value)
    table[value] = static_cast<std::uint8_t>(static_cast<double>(value) >= threshold ? 255 - value : value);
  return table;
}

void grayscale(Picture& picture, int output_channels, PixelScratch& scratch) {
  const std::size_t pixels = picture.pixels();
  const std::uint8_t* luma;
  if (picture.channels == 3) {
    luma = luma_of(picture, scratch);
  } else {
    if (output_channels == 1) return;
    std::uint8_t* copy = scratch.luma.reserve(pixels);
    std::memcpy(copy, picture.data, pixels);
    luma = copy;
  }
  picture.channels = output_channels;
  if (output_channels == 1) {
    std::memcpy(picture.data, luma, pixels);
    return;
  }
  for (std::size_t i = 0; i < pixels; ++i)
    for (std::size_t c = 0; c < 3; ++c) picture.data[3 * i + c] = luma[i];
}

void adjust_brightness(Picture& picture, double factor) {
  blend_all(picture, static_cast<float>(factor), 0.0f);
}

void adjust_contrast(Picture& picture, double factor, PixelScratch& scratch) {
  const std::size_t pixels = picture.pixels();
  const std::uint8_t* luma = picture.channels == 3 ? luma_of(picture, scratch) : picture.data;
  std::uint64_t sum = 0;
  for (std::size_t i = 0; i < pixels; ++i) sum += luma[i];
  const auto mean = static_cast<float>(static_cast<double>(sum) / static_cast<double>(pixels));
  blend_all(picture, static_cast<float>(factor), mean * static_cast<float>(1.0 - factor));
}

void adjust_saturation(Picture& picture, double factor, PixelScratch& scratch) {
  if (picture.channels == 1) return;
  const std::uint8_t* luma = luma_of(picture, scratch);
  std::uint8_t gray[3 * kBlock];
  for (std::size_t from = 0; from < picture.pixels(); from += kBlock) {
    const std::size_t count = std::min(kBlock, picture.pixels() - from);
    for (std::size_t i = 0; i < count; ++i) gray[3 * i] = gray[3 * i + 1] = gray[3 * i + 2] = luma[from + i];
    kernels().mix(picture.data + 3 * from, gray, 3 * count, static_cast<float>(factor),
                  static_cast<float>(1.0 - factor));
  }
}

void adjust_hue(Picture& picture, double turn) {
  if (picture.channels == 1) return;
  vectorised<Hue>(picture.data, picture.pixels(), static_cast<float>(turn));
}

void autocontrast(Picture& picture) {
  const auto counts = histograms(picture);
  std::array<Table, 3> tables{};
  for (int c = 0; c < picture.channels; ++c)
    tables[static_cast<std::size_t>(c)] = stretched(counts[static_cast<std::size_t>(c)]);
  look_up(picture, tables);
}

void equalize(Picture& picture) {
  const auto counts = histograms(picture);
  std::array<Table, 3> tables{};
  for (int c = 0; c < picture.channels; ++c)
    tables[static_cast<std::size_t>(c)] = flattened(counts[static_cast<std::size_t>(c)], picture.pixels());
  look_up(picture, tables);
}

}  // namespace fastload::image

#include "image/filter.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "image/series.h"
#include "image/vectorise.h"

namespace fastload::image {
namespace {

// A Gaussian's weights, which sum to 2^16: rounded half up, what the sum lacks added to the middle one.
struct Kernel {
  Kernel(int size, double sigma) : size(size) {
    const int middle = size / 2;
    double exact[kMostTaps], total = 0.0;
    for (int i = 0; i < size; ++i) {
      const double distance = (i - middle) / sigma, power = -0.5 * distance * distance;
      exact[i] = power < -700.0 ? 0.0 : exponential(power);
      total += exact[i];
    }
    std::int64_t sum = 0;
    for (int i = 0; i < size; ++i) {
      weights[i] = static_cast<std::uint32_t>(exact[i] / total * 65536.0 + 0.5);
      sum += weights[i];
    }
    weights[middle] = static_cast<std::uint32_t>(weights[middle] + (65536 - sum));
  }

  int size;
  std::uint32_t weights[kMostTaps];
};

// Mirrored at the edges without repeating them, as often as it takes.
std::int64_t reflected(std::int64_t i, std::int64_t size) {
  if (size == 1) return 0;
  const std::int64_t period = 2 * (size - 1);
  i = (i % period + period) % period;
  return i < size ? i : period - i;
}

struct Accumulate {
  template <typename Value>
  static FASTLOAD_INLINE void run(std::uint32_t* sums, const Value* values, std::size_t count,
                                  std::uint32_t weight) {
    for (std::size_t i = 0; i < count; ++i) sums[i] += weight * values[i];
  }
};

template <int Shift, typename Result>
struct Round {
  static FASTLOAD_INLINE void run(const std::uint32_t* sums, std::size_t count, Result* out) {
    for (std::size_t i = 0; i < count; ++i) out[i] = static_cast<Result>(sums[i] >> Shift);
  }
};

struct Sharpen {
  // One row; `count` values without the first and last pixel.
  static FASTLOAD_INLINE void run(const std::uint8_t* above, const std::uint8_t* row,
                                  const std::uint8_t* below, std::uint8_t* out, std::size_t count,
                                  std::size_t channels, float factor) {
    const std::size_t twice = 2 * channels;
    for (std::size_t i = 0; i < count; ++i) {
      const int value = row[i + channels];
      const int sum = above[i] + above[i + channels] + above[i + twice] + row[i] + 5 * value +
                      row[i + twice] + below[i] + below[i + channels] + below[i + twice];
      // Exactly (sum + 6) / 13 up to 3,321, the largest.
      const int smooth = ((sum + 6) * 20165) >> 18;
      float result = static_cast<float>(value) + static_cast<float>(smooth - value) * factor;
      result = result < 0.0f ? 0.0f : result;
      result = result > 255.0f ? 255.0f : result;
      out[i + channels] = static_cast<std::uint8_t>(static_cast<std::int32_t>(result));
    }
  }
};

}  // namespace

void gaussian_blur(Picture& picture, int kernel_width, int kernel_height, double sigma,
                   PixelScratch& scratch) {
  const Kernel horizontal(kernel_width, sigma), vertical(kernel_height, sigma);
  const std::int64_t height = picture.size.height, width = picture.size.width;
  const auto channels = static_cast<std::size_t>(picture.channels);
  const std::size_t row_bytes = picture.row_bytes();
  const std::int64_t margin = kernel_width / 2;
  std::uint32_t* sums = scratch.sums.reserve(row_bytes);
  std::uint16_t* middle = scratch.rows.reserve(picture.bytes());  // rows blurred, with 8 fractional bits
  std::uint8_t* padded = scratch.copy.reserve(row_bytes + static_cast<std::size_t>(2 * margin) * channels);
  for (std::int64_t y = 0; y < height; ++y) {
    const std::uint8_t* row = picture.data + static_cast<std::size_t>(y) * row_bytes;
    std::memcpy(padded + static_cast<std::size_t>(margin) * channels, row, row_bytes);
    for (std::int64_t x = 0; x < margin; ++x) {
      const std::int64_t left = reflected(x - margin, width), right = reflected(width + x, width);
      std::memcpy(padded + static_cast<std::size_t>(x) * channels,
                  row + static_cast<std::size_t>(left) * channels, channels);
      std::memcpy(padded + static_cast<std::size_t>(margin + width + x) * channels,
                  row + static_cast<std::size_t>(right) * channels, channels);
    }
    std::fill(sums, sums + row_bytes, 1u << 7);
    for (int k = 0; k < kernel_width; ++k)
      if (horizontal.weights[k] != 0)
        vectorised<Accumulate>(
            sums, static_cast<const std::uint8_t*>(padded + static_cast<std::size_t>(k) * channels),
            row_bytes, horizontal.weights[k]);
    vectorised<Round<8, std::uint16_t>>(static_cast<const std::uint32_t*>(sums), row_bytes,
                                        middle + static_cast<std::size_t>(y) * row_bytes);
  }
  for (std::int64_t y = 0; y < height; ++y) {
    std::fill(sums, sums + row_bytes, 1u << 23);
    for (int k = 0; k < kernel_height; ++k) {
      if (vertical.weights[k] == 0) continue;
      const std::int64_t from = reflected(y + k - kernel_height / 2, height);
      vectorised<Accumulate>(
          sums, static_cast<const std::uint16_t*>(middle + static_cast<std::size_t>(from) * row_bytes),
          row_bytes, vertical.weights[k]);
    }
    vectorised<Round<24, std::uint8_t>>(static_cast<const std::uint32_t*>(sums), row_bytes,
                                        picture.data + static_cast<std::size_t>(y) * row_bytes);
  }
}

void adjust_sharpness(Picture& picture, double factor, PixelScratch& scratch) {
  if (picture.size.height <= 2 || picture.size.width <= 2) return;
  std::uint8_t* copy = scratch.copy.reserve(picture.bytes());
  std::memcpy(copy, picture.data, picture.bytes());
  const auto channels = static_cast<std::size_t>(picture.channels);
  const std::size_t row_bytes = picture.row_bytes();
  for (std::int64_t y = 1; y + 1 < picture.size.height; ++y) {
    const std::uint8_t* row = copy + static_cast<std::size_t>(y) * row_bytes;
    vectorised<Sharpen>(row - row_bytes, row, row + row_bytes,
                        picture.data + static_cast<std::size_t>(y) * row_bytes, row_bytes - 2 * channels,
                        channels, static_cast<float>(1.0 - factor));
  }
}

}  // namespace fastload::image

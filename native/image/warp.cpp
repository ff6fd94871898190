#include "image/warp.h"

#include <cmath>
#include <cstring>

namespace fastload::image {
namespace {

constexpr int kBits = 32;  // of the fraction; positions are doubled besides, because the middle may be a half

std::int64_t fixed(double value, int bits) {
  return static_cast<std::int64_t>(std::floor(std::ldexp(value, bits) + 0.5));
}

}  // namespace

void warp_nearest(Picture& picture, const Map& map, const std::array<std::uint8_t, 3>& fill,
                  PixelScratch& scratch) {
  std::uint8_t* copy = scratch.copy.reserve(picture.bytes());
  std::memcpy(copy, picture.data, picture.bytes());
  const std::int64_t width = picture.size.width, height = picture.size.height;
  const auto channels = static_cast<std::size_t>(picture.channels);
  const std::int64_t xx = fixed(map[0], kBits), xy = fixed(map[1], kBits), yx = fixed(map[3], kBits),
                     yy = fixed(map[4], kBits);
  // The middle, and half a pixel for rounding.
  const std::int64_t x_offset = fixed(map[2], kBits + 1) + (width << kBits),
                     y_offset = fixed(map[5], kBits + 1) + (height << kBits);
  std::uint8_t* out = picture.data;
  for (std::int64_t y = 0; y < height; ++y) {
    std::int64_t from_x = xx * (1 - width) + xy * (2 * y + 1 - height) + x_offset,
                 from_y = yx * (1 - width) + yy * (2 * y + 1 - height) + y_offset;
    for (std::int64_t x = 0; x < width; ++x, from_x += 2 * xx, from_y += 2 * yx, out += channels) {
      const std::int64_t column = from_x >> (kBits + 1), row = from_y >> (kBits + 1);
      const bool inside = column >= 0 && column < width && row >= 0 && row < height;
      const std::uint8_t* in =
          inside ? copy + static_cast<std::size_t>(row * width + column) * channels : fill.data();
      for (std::size_t c = 0; c < channels; ++c) out[c] = in[c];
    }
  }
}

}  // namespace fastload::image

// How a JPEG image samples its components, and in what sizes they are decoded.
#pragma once

#include <array>

#include "image/program.h"

namespace fastload::image {

// The sampling factors of a JPEG image's components, as its frame header states them.
struct Sampling {
  int components = 0;
  std::array<int, 4> horizontal{};
  std::array<int, 4> vertical{};

  int max_horizontal() const;
  int max_vertical() const;
  bool operator==(const Sampling&) const = default;
};

// One component where the sides of the image are divided: libjpeg decodes it in blocks of `block` a side,
// which it makes larger than those of the image where that saves it upsampling.
struct PlaneGrid {
  int block = 8;
  int across = 1;  // pixels (of the divided image) to one sample; 0 where that is not a whole number
  int down = 1;
  Size size;  // of the whole plane
  // Whether libjpeg's exact upsampling interpolates (3/4 of the nearest sample, 1/4 of the next), not
  // repeats.
  bool interpolated = false;

  bool operator==(const PlaneGrid&) const = default;
};

PlaneGrid plane_grid(const Sampling& sampling, int component, Size image, int denominator);

}  // namespace fastload::image

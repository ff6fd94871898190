// Affine maps of a picture onto itself.
#pragma once

#include <array>
#include <cstdint>

#include "image/pixel_op.h"

namespace fastload::image {

// Where a pixel comes from, with (0, 0) in the middle of the picture:
// x' = [0] x + [1] y + [2], y' = [3] x + [4] y + [5]. The factors are at most 1 in magnitude.
using Map = std::array<double, 6>;

// Takes the nearest pixel for each, `fill` where that is outside.
void warp_nearest(Picture& picture, const Map& map, const std::array<std::uint8_t, 3>& fill,
                  PixelScratch& scratch);

}  // namespace fastload::image

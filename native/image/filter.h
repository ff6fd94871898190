// Operations that weigh a pixel with its neighbours. fastload/transforms/arithmetic.py repeats them.
#pragma once

#include "image/pixel_op.h"

namespace fastload::image {

inline constexpr int kMostTaps = 255;

// Kernel sizes are odd, and kMostTaps at most. `sigma` is in pixels.
void gaussian_blur(Picture& picture, int kernel_width, int kernel_height, double sigma,
                   PixelScratch& scratch);
void adjust_sharpness(Picture& picture, double factor, PixelScratch& scratch);

}  // namespace fastload::image

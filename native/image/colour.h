// Operations on colours: the arithmetic that docs/images.md specifies and fastload/transforms/arithmetic.py
// repeats.
#pragma once

#include <array>
#include <cstdint>

#include "image/pixel_op.h"

namespace fastload::image {

using Table = std::array<std::uint8_t, 256>;  // what becomes of each value

void look_up(Picture& picture, const Table& table);
void look_up(Picture& picture, const std::array<Table, 3>& tables);  // one for each channel

Table inverted();
Table posterized(int bits);
Table solarized(double threshold);

void grayscale(Picture& picture, int output_channels, PixelScratch& scratch);
void adjust_brightness(Picture& picture, double factor);
void adjust_contrast(Picture& picture, double factor, PixelScratch& scratch);
void adjust_saturation(Picture& picture, double factor, PixelScratch& scratch);
void adjust_hue(Picture& picture, double turn);  // in turns of the colour circle, -0.5 to 0.5
void autocontrast(Picture& picture);
void equalize(Picture& picture);

}  // namespace fastload::image

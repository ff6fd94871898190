// decode="fast": which pass may read a smaller image than was asked for. Not part of the exact path.
#pragma once

#include "image/geometry.h"
#include "image/sampling.h"

namespace fastload::image {

// By what libjpeg may divide the sides of a JPEG image of which `pass` is made: the largest of 8, 4, 2 that
// leaves its source, and the planes of it which are divided, at least as large as what it is resized to, both
// ways; 1 where `pass` is no antialiased resize.
int denominator_of(const Pass& pass, const Sampling& sampling);

// Changes `pass` over an image of `size` to one over that image with its sides divided: its source becomes
// the smallest window that holds the same part, and `box` that part to a fraction of a pixel.
void divide(Pass& pass, Size size, int denominator);

}  // namespace fastload::image

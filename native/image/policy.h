// RandAugment and TrivialAugmentWide: one of fourteen operations, of a magnitude, as torchvision has them.
#pragma once

#include <array>
#include <cstdint>

#include "core/philox.h"
#include "image/pixel_op.h"

namespace fastload::image {

using Fill = std::array<std::uint8_t, 3>;

// `count` operations of magnitude `magnitude` of `bins`. Operation k takes integer 3k, and negates its
// magnitude where uniform 3k + 2 is at most 1/2.
void rand_augment(Picture& picture, int count, int magnitude, int bins, const Fill& fill, const Draws& draws,
                  PixelScratch& scratch);

// One operation (integer 0) of magnitude integer 1 of `bins`, negated where uniform 2 is at most 1/2.
void trivial_augment_wide(Picture& picture, int bins, const Fill& fill, const Draws& draws,
                          PixelScratch& scratch);

}  // namespace fastload::image

#include "image/reduce.h"

#include <algorithm>

namespace fastload::image {

namespace {

// Whether the source still has as many samples as the output in each plane that is smaller for it.
bool is_enough(const Pass& pass, const Sampling& sampling, int denominator) {
  for (int c = 0; c < sampling.components; ++c) {
    const PlaneGrid grid = plane_grid(sampling, c, {1, 1}, denominator);
    const bool divided = grid.block < 8;
    const std::int64_t down = denominator * (divided ? std::max(grid.down, 1) : 1);
    const std::int64_t across = denominator * (divided ? std::max(grid.across, 1) : 1);
    if (pass.source.height < down * pass.resized.height || pass.source.width < across * pass.resized.width)
      return false;
  }
  return true;
}

}  // namespace

int denominator_of(const Pass& pass, const Sampling& sampling) {
  if (!pass.resizes || !pass.antialias || pass.interpolation == Interpolation::nearest) return 1;
  for (const int denominator : {8, 4, 2})
    if (is_enough(pass, sampling, denominator)) return denominator;
  return 1;
}

void divide(Pass& pass, Size size, int denominator) {
  if (denominator == 1) return;
  const Window source = pass.source;
  const auto up = [&](std::int64_t side) { return (side + denominator - 1) / denominator; };
  pass.source.top = source.top / denominator;
  pass.source.left = source.left / denominator;
  pass.source.height = std::min(up(source.bottom()), up(size.height)) - pass.source.top;
  pass.source.width = std::min(up(source.right()), up(size.width)) - pass.source.left;
  const auto exact = [&](std::int64_t side) { return static_cast<double>(side) / denominator; };
  pass.box = {exact(source.top) - static_cast<double>(pass.source.top),
              exact(source.left) - static_cast<double>(pass.source.left), exact(source.height),
              exact(source.width)};
}

}  // namespace fastload::image

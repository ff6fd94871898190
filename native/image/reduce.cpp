#include "image/reduce.h"

#include <algorithm>

namespace fastload::image {

int denominator_of(const Pass& pass) {
  if (!pass.resizes || !pass.antialias || pass.interpolation == Interpolation::nearest) return 1;
  for (const int denominator : {8, 4, 2})
    if (pass.source.height >= denominator * pass.resized.height &&
        pass.source.width >= denominator * pass.resized.width)
      return denominator;
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

#include "image/sampling.h"

#include <algorithm>

namespace fastload::image {
namespace {

constexpr int kBlock = 8;

int largest(const std::array<int, 4>& factors, int count) {
  return *std::max_element(factors.begin(), factors.begin() + std::max(count, 1));
}

std::int64_t divide_up(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

}  // namespace

int Sampling::max_horizontal() const { return largest(horizontal, components); }
int Sampling::max_vertical() const { return largest(vertical, components); }

PlaneGrid plane_grid(const Sampling& sampling, int component, Size image, int denominator) {
  const auto at = static_cast<std::size_t>(component);
  const int horizontal = sampling.horizontal[at], vertical = sampling.vertical[at];
  const int smallest = kBlock / denominator;
  const int across = sampling.max_horizontal() * smallest, down = sampling.max_vertical() * smallest;
  PlaneGrid grid;
  grid.block = smallest;
  while (grid.block < kBlock && across % (horizontal * grid.block * 2) == 0 &&
         down % (vertical * grid.block * 2) == 0)
    grid.block *= 2;
  const int width = horizontal * grid.block, height = vertical * grid.block;
  grid.across = across % width == 0 ? across / width : 0;
  grid.down = down % height == 0 ? down / height : 0;
  grid.size = {divide_up(image.height * height, sampling.max_vertical() * kBlock),
               divide_up(image.width * width, sampling.max_horizontal() * kBlock)};
  const bool doubled = (grid.across == 1 && grid.down == 2) ||
                       (grid.across == 2 && (grid.down == 1 || grid.down == 2) && grid.size.width > 2);
  grid.interpolated = denominator == 1 && doubled;
  return grid;
}

}  // namespace fastload::image

// RandomErasing, on pixels or on converted values in a batch.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "core/philox.h"
#include "image/geometry.h"
#include "image/program.h"

namespace fastload::image {

// One image of `type` in memory: planes one after another, or interleaved.
struct Target {
  std::byte* data = nullptr;
  Size size;
  int channels = 3;
  ElementType type = ElementType::uint8;
  bool planar = false;
};

class Erasing {
 public:
  // Throws Error (usage) where the numbers make no sense for images of `channels`.
  Erasing(const OpSpec& spec, std::uint32_t index, int channels);

  std::uint32_t index() const { return index_; }
  void erase(const Target& target, const Draws& draws) const;

 private:
  std::optional<Window> draw(Size size, const Draws& draws) const;
  template <typename Element>
  void fill(const Target& target, const Window& window, std::uint64_t noise) const;

  std::uint32_t index_;
  double probability_ = 0.0;
  std::array<double, 2> scale_{};
  std::array<double, 2> log_ratio_{};
  bool random_ = false;
  std::array<float, 3> values_{};
};

}  // namespace fastload::image

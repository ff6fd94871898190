// Where pixels come from: operations on sizes, resolved into as few passes over pixels as give the same
// result.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "image/program.h"

namespace fastload::image {

struct Window {
  std::int64_t top = 0;
  std::int64_t left = 0;
  std::int64_t height = 0;
  std::int64_t width = 0;
  bool operator==(const Window&) const = default;
  std::int64_t bottom() const { return top + height; }
  std::int64_t right() const { return left + width; }
};

inline Window whole(Size size) { return {0, 0, size.height, size.width}; }

// Whether `inner` lies within an image of `size`.
inline bool inside(const Window& inner, Size size) {
  return inner.top >= 0 && inner.left >= 0 && inner.bottom() <= size.height && inner.right() <= size.width;
}

Window intersection(const Window& a, const Window& b);

enum class Interpolation { nearest, bilinear, bicubic, lanczos };

// A part of a window to a fraction of a pixel, in its coordinates.
struct Box {
  double top = 0;
  double left = 0;
  double height = 0;
  double width = 0;
};

// One pass: the part `source` of the input, resized to `resized` where `resizes`, of which `output` is cut
// (`fill` where it reaches outside), then mirrored left to right where `flipped` and top to bottom where
// `flipped_rows`. Without a resize, `source` is the whole input.
struct Pass {
  Window source;
  Box box;  // the part of `source` that is resized; empty: all of it
  bool resizes = false;
  Size resized;
  Interpolation interpolation = Interpolation::bilinear;
  bool antialias = true;
  Window output;
  bool flipped = false;
  bool flipped_rows = false;
  std::array<std::uint8_t, 3> fill{};  // for each channel
};

enum class GeometryKind {
  resize,
  center_crop,
  random_resized_crop,
  random_crop,
  pad,
  random_horizontal_flip,
  random_vertical_flip
};

// A geometric operation with its numbers, checked by parse_geometry(), and its place in the program.
struct GeometryOp {
  GeometryKind kind;
  std::vector<double> numbers;
  std::uint32_t index = 0;
};

// Whether `spec` names a geometric operation.
bool is_geometry(const OpSpec& spec);
// Throws Error (usage) where the numbers make no sense for images of `channels`.
GeometryOp parse_geometry(const OpSpec& spec, std::uint32_t index, int channels);

// The size that an image of `size` comes out with, whatever is drawn. Throws as resolve() does, but not for
// an image smaller than the crop.
Size size_after(const GeometryOp& op, Size size);

// Writes to `passes` (at least one) what `ops` do to an image of `size` with the draws of `key`. Throws Error
// (decode) where the image would become larger than kMaxPixels, or is smaller than a crop that may not pad.
void resolve(std::span<const GeometryOp> ops, Size size, const SampleKey& key, std::uint32_t group,
             std::vector<Pass>& passes);

}  // namespace fastload::image

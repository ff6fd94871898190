// decode="fast": resizing the planes of a JPEG image as they are decoded, each from its own grid straight to
// the output's, and converting colours there: no upsampling, no conversion of pixels that the resize
// averages.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "image/buffer.h"
#include "image/geometry.h"
#include "image/jpeg.h"
#include "image/plane_kernels.h"
#include "image/resize.h"
#include "image/sampling.h"

namespace fastload::image {

// The weights of `pixels` on the samples that its pixels are upsampled from. Pixel 0 of the axis is pixel
// `origin` of the image; of `samples` samples in all, one covers `ratio` pixels.
void fold(const Axis& pixels, std::int64_t origin, int ratio, bool interpolated, std::int64_t samples,
          Axis& folded);

// Makes the rows of one pass, in RGB: prepare(), begin(), then any row of inner(). As Resizer does, whose
// weights these are; upsampling and resizing are one filter, and colours are converted after it.
class PlaneResizer {
 public:
  // Plans `pass` over an image of `size` whose sides are divided. False where it is to be made of pixels: it
  // is no bilinear resize, or makes the image narrower by more than kWidest, or the components are such that
  // libjpeg does not upsample them in whole numbers, or neither one nor three.
  bool prepare(const Pass& pass, const Sampling& sampling, Size size, int denominator);

  // Which pixels (of the divided image) the pass reads.
  Window part() const { return part_; }

  // Gives the input: planes that have at least that part.
  void begin(const Planes& planes);

  Window inner() const { return inner_; }

  // Writes row `row` (0 is the first of inner()) with inner().width pixels in three channels.
  void write_row(std::int64_t row, std::uint8_t* out, const RowLayout& layout);

 private:
  // Weights, which count from `origin` of the plane on.
  struct Direction {
    const Axis* axis = nullptr;
    std::int64_t origin = 0;
    Axis folded;
  };
  struct Component {
    std::size_t weights = 0;  // which component has its weights: itself, or one before it
    Direction vertical;
    Direction horizontal;
    Buffer<std::int32_t> pairs;  // of the vertical weights
    int pair_count = 0;
    Spread spread;  // the horizontal weights for AVX2
    // Rows after the horizontal pass: row r of the plane is at r mod kept, where rows[r mod kept] is r.
    Buffer<std::int16_t> middle;
    std::vector<std::int64_t> rows;
  };

  bool choose_grids(const Sampling& sampling, Size size, int denominator);
  void choose_weights(const Window& source);
  void round_weights(Component& component, bool flipped);
  const std::int16_t* middle_row(std::size_t number, std::int64_t row);
  void resize_row(std::size_t number, std::int64_t row);
  void write_planar(std::uint8_t* out, std::size_t plane_stride) const;

  const PlaneKernels* kernels_ = nullptr;
  bool flipped_rows_ = false;
  std::size_t count_ = 0;
  Window inner_;
  Window part_;
  Planes input_;
  Axis rows_;  // of pixels
  Axis columns_;
  std::array<Component, 3> components_;
  std::array<PlaneGrid, 3> grids_;
  std::vector<const std::int16_t*> inputs_;
  std::array<Buffer<std::int16_t>, 3> samples_;
  Buffer<std::uint8_t> planar_;
};

}  // namespace fastload::image

// Operations on the values of pixels, in place. fastload/transforms holds the reference of each.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "core/philox.h"
#include "image/buffer.h"
#include "image/program.h"

namespace fastload::image {

// Interleaved pixels in memory that has room for three channels.
struct Picture {
  std::uint8_t* data = nullptr;
  Size size;
  int channels = 3;

  std::size_t pixels() const {
    return static_cast<std::size_t>(size.height) * static_cast<std::size_t>(size.width);
  }
  std::size_t row_bytes() const {
    return static_cast<std::size_t>(size.width) * static_cast<std::size_t>(channels);
  }
  std::size_t bytes() const { return pixels() * static_cast<std::size_t>(channels); }
};

struct PixelScratch {  // of one thread
  Buffer<std::uint8_t> copy;
  Buffer<std::uint8_t> luma;
  Buffer<std::uint16_t> rows;
  Buffer<std::uint32_t> sums;
};

class PixelOp {
 public:
  explicit PixelOp(std::uint32_t index) : index_(index) {}
  virtual ~PixelOp() = default;
  // Its place in the program, which numbers its draws.
  std::uint32_t index() const { return index_; }
  virtual int output_channels(int channels) const { return channels; }
  virtual void apply(Picture& picture, const Draws& draws, PixelScratch& scratch) const = 0;

 private:
  std::uint32_t index_;
};

// The operation that `spec` names, or null where it names none of these. Throws Error (usage) where the
// numbers make no sense for images of `channels`.
std::unique_ptr<const PixelOp> parse_pixel_op(const OpSpec& spec, std::uint32_t index, int channels);

}  // namespace fastload::image

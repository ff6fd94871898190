// Decoding a part of a JPEG image, with the pixels that decoding the whole would give.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "image/buffer.h"
#include "image/geometry.h"
#include "image/program.h"

namespace fastload::image {

// The largest image decoded (as in fastload/transforms/decode.py).
inline constexpr std::int64_t kMaxPixels = 178'956'970;

bool is_jpeg(std::span<const std::byte> encoded);

// Pixels in memory: the pixel (row, column) of the image, where it is inside `window`, is at
// data + (row - window.top) * stride + (column - window.left) * channels.
struct View {
  const std::uint8_t* data = nullptr;
  std::size_t stride = 0;
  Window window;

  const std::uint8_t* at(std::int64_t row, std::int64_t column, int channels) const {
    return data + static_cast<std::size_t>(row - window.top) * stride +
           static_cast<std::size_t>((column - window.left) * channels);
  }
};

// One image at a time: open(), then decode() once. Holds no memory of the codec between images: libjpeg keeps
// tables of the last image otherwise, and a file without tables would be decoded with them.
class JpegDecoder {
 public:
  JpegDecoder();
  ~JpegDecoder();
  JpegDecoder(const JpegDecoder&) = delete;
  JpegDecoder& operator=(const JpegDecoder&) = delete;

  // Reads the header. `encoded` must live until close() or the next open(). Throws Error (decode).
  Size open(std::span<const std::byte> encoded);

  // Decodes `window` (inside the image, not empty) in `channels` 3 (RGB) or 1 (luma). The view lives until
  // the next decode(). Throws Error (decode) where the data is damaged or ends before the window does.
  View decode(const Window& window, int channels);

  void close();

 private:
  struct State;
  [[noreturn]] void fail();
  std::unique_ptr<State> state_;
  Buffer<std::uint8_t> pixels_;
};

}  // namespace fastload::image

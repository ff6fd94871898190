// Decoding a part of a JPEG image, with the pixels that decoding the whole would give.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "image/buffer.h"
#include "image/geometry.h"
#include "image/jpeg_crop.h"
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

// How an image is decoded.
struct DecodeChoice {
  int denominator = 1;      // 1, 2, 4 or 8: what the sides are divided by, rounded up
  bool quick = false;       // a cheaper DCT, and each chroma sample for its pixels alone
  bool by_segments = true;  // only for comparing: the pixels are the same
};

// One image at a time: open(), then decode() once. Holds no memory of the codec between images: libjpeg keeps
// tables of the last image otherwise, and a file without tables would be decoded with them.
class JpegDecoder {
 public:
  JpegDecoder();
  ~JpegDecoder();
  JpegDecoder(const JpegDecoder&) = delete;
  JpegDecoder& operator=(const JpegDecoder&) = delete;

  // Reads the header; of images that can be cut, only as far as their size. `encoded` must live until close()
  // or the next open(). Throws Error (decode).
  Size open(std::span<const std::byte> encoded);

  // Decodes `window` (inside the image, not empty) in `channels` 3 (RGB) or 1 (luma). The view lives until
  // the next decode(). Where the sides are divided, both are in pixels of the smaller image. Throws Error
  // (decode) where the data is damaged or ends before the window does. An image with restart markers is
  // decoded only in the segments that the window needs.
  View decode(const Window& window, int channels, const DecodeChoice& choice = {});

  void close();

 private:
  struct State;
  [[noreturn]] void fail();
  void open_part(const Window& window, const DecodeChoice& choice);
  std::unique_ptr<State> state_;
  JpegCropper cropper_;
  Size size_;
  Buffer<std::uint8_t> pixels_;
};

}  // namespace fastload::image

// Decoding a part of a JPEG image, with the pixels that decoding the whole would give.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "image/buffer.h"
#include "image/geometry.h"
#include "image/jpeg_crop.h"
#include "image/program.h"
#include "image/sampling.h"

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
  bool by_segments = true;  // only for comparing, as the next: the pixels are the same
  bool by_libjpeg = false;  // its own Huffman decoding
};

// The components of an image of one or three, before upsampling and colour conversion. Each view has one
// channel, and the coordinates of its plane_grid().
struct Planes {
  int count = 0;
  bool is_rgb = false;  // three that are no luma and chroma
  std::array<View, 3> views;
};

// One image at a time: open(), then decode() or decode_planes() once. Holds no memory of the codec between
// images: libjpeg keeps tables of the last image otherwise, and a file without tables would be decoded with
// them.
class JpegDecoder {
 public:
  JpegDecoder();
  ~JpegDecoder();
  JpegDecoder(const JpegDecoder&) = delete;
  JpegDecoder& operator=(const JpegDecoder&) = delete;

  // Reads the header; of images that can be cut, only as far as their size. `encoded` must live until close()
  // or the next open(). Throws Error (decode).
  Size open(std::span<const std::byte> encoded);

  // Of the image opened.
  const Sampling& sampling() const { return sampling_; }

  // Decodes `window` (inside the image, not empty) in `channels` 3 (RGB) or 1 (luma). The view lives until
  // the next decode(). Where the sides are divided, both are in pixels of the smaller image. Throws Error
  // (decode) where the data is damaged or ends before the window does. An image with restart markers is
  // decoded only in the segments that the window needs.
  View decode(const Window& window, int channels, const DecodeChoice& choice = {});

  // The same of an image of one or three components, as the planes that it is made of: what upsampling
  // `window` exactly would read of them.
  Planes decode_planes(const Window& window, const DecodeChoice& choice = {});

  void close();

 private:
  struct State;
  [[noreturn]] void fail();
  void open_part(const Window& window, const DecodeChoice& choice);
  // Begins anew, with libjpeg's own Huffman decoding, what ours has given up. Fails where it was not ours.
  void reopen();
  // The state's window for `window`; opens the part where that is still to be done.
  void begin(const Window& window, const DecodeChoice& choice);
  std::unique_ptr<State> state_;
  JpegCropper cropper_;
  Sampling sampling_;
  Size size_;
  Buffer<std::uint8_t> pixels_;
};

}  // namespace fastload::image

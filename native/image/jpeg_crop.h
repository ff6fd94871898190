// Cutting a part out of a JPEG image without decoding it: restart markers let each segment decode alone.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "image/buffer.h"
#include "image/geometry.h"
#include "image/sampling.h"

namespace fastload::image {

// One image at a time: open(), then assemble() as often as wanted. Takes baseline and extended sequential
// Huffman images of one scan whose restart interval divides the MCU row or is a multiple of it; has no
// opinion on all others, damaged ones among them, which are to be decoded as they are.
class JpegCropper {
 public:
  // Bytes after the end of an assembled stream, all zero: libjpeg has a faster way while it has this much
  // ahead.
  static constexpr std::size_t kPadding = 5120;

  struct Part {
    std::span<const std::byte> stream;  // a JPEG image, and kPadding; lives until the next assemble()
    Window window;                      // the part of the source that it shows
  };

  // Reads the headers. False where the image cannot be cut. `encoded` must live as long as it is used.
  bool open(std::span<const std::byte> encoded);

  Size size() const { return size_; }
  const Sampling& sampling() const { return sampling_; }

  // The segments that hold `window` (inside the image, not empty) with the margin that upsampling reads, as
  // an image of their own: its pixels in the window are those of the source. Nothing where that is all of the
  // image, or where the markers up to the window's last row are not as they should be.
  std::optional<Part> assemble(const Window& window);

 private:
  struct Piece {
    std::size_t first;
    std::size_t size;
  };
  struct Grid {  // of segments
    std::int64_t first_column, last_column, first_row, last_row;
  };

  bool read_headers();
  bool read_header(int marker, std::size_t at, std::size_t size);
  bool read_frame(std::size_t at, std::size_t size);
  bool read_scan(std::size_t at, std::size_t size);
  void find_margin();
  bool plan_segments();
  std::size_t next_marker(std::size_t from) const;
  int byte(std::size_t at) const { return std::to_integer<int>(encoded_[at]); }
  int word(std::size_t at) const { return byte(at) << 8 | byte(at + 1); }
  Grid cover(const Window& window) const;
  Window window_of(const Grid& grid) const;
  std::byte* copy_headers(std::byte* out, Size size) const;
  std::byte* copy_segments(std::byte* out, const Grid& grid) const;

  std::span<const std::byte> encoded_;
  Size size_;
  Sampling sampling_;
  bool has_frame_ = false;
  std::int64_t interval_ = 0;                         // MCUs
  std::int64_t margin_across_ = 0, margin_down_ = 0;  // pixels around a window that upsampling reads
  // Of a segment, in pixels, and how many there are. A row of segments is part of an MCU row, or some MCU
  // rows.
  std::int64_t segment_width_ = 0, segment_height_ = 0, columns_ = 0, rows_ = 0;
  std::size_t frame_ = 0;       // where the frame header states the height
  std::size_t data_ = 0;        // where entropy-coded data begin
  std::vector<Piece> headers_;  // what an assembled stream takes over
  Buffer<std::byte> stream_;
};

}  // namespace fastload::image

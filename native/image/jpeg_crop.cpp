#include "image/jpeg_crop.h"

#include <algorithm>
#include <cstring>

namespace fastload::image {
namespace {

constexpr int kRst0 = 0xD0, kSoi = 0xD8, kEoi = 0xD9, kSos = 0xDA, kDqt = 0xDB, kDri = 0xDD;
constexpr int kSof0 = 0xC0, kSof1 = 0xC1, kDht = 0xC4;
constexpr int kApp0 = 0xE0, kApp14 = 0xEE, kApp15 = 0xEF, kCom = 0xFE;
constexpr std::int64_t kBlock = 8;

std::int64_t divide_up(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

std::byte* put_marker(std::byte* out, int marker) {
  out[0] = std::byte{0xFF};
  out[1] = static_cast<std::byte>(marker);
  return out + 2;
}

void put_word(std::byte* out, std::int64_t value) {
  out[0] = static_cast<std::byte>(value >> 8);
  out[1] = static_cast<std::byte>(value & 0xFF);
}

}  // namespace

bool JpegCropper::open(std::span<const std::byte> encoded) {
  encoded_ = encoded;
  headers_.clear();
  sampling_ = {};
  has_frame_ = false;
  interval_ = 0;
  return read_headers() && plan_segments();
}

bool JpegCropper::read_headers() {
  if (encoded_.size() < 4 || byte(0) != 0xFF || byte(1) != kSoi) return false;
  std::size_t at = 2;
  while (at + 4 <= encoded_.size()) {
    if (byte(at) != 0xFF) return false;
    const int marker = byte(at + 1);
    const auto size = static_cast<std::size_t>(word(at + 2)) + 2;  // with the marker
    if (size < 4 || size > encoded_.size() - at) return false;
    if (!read_header(marker, at, size)) return false;
    at += size;
    if (marker == kSos) {
      data_ = at;
      return true;
    }
  }
  return false;
}

bool JpegCropper::read_header(int marker, std::size_t at, std::size_t size) {
  // APP0 and APP14 say which colours the components are; the rest of the metadata says nothing of pixels.
  const bool is_metadata = (marker >= kApp0 && marker <= kApp15) || marker == kCom;
  if (is_metadata && marker != kApp0 && marker != kApp14) return true;
  headers_.push_back({at, size});
  if (is_metadata || marker == kDqt || marker == kDht) return true;
  if (marker == kSof0 || marker == kSof1) return read_frame(at, size);
  if (marker == kSos) return read_scan(at, size);
  if (marker != kDri || size != 6) return false;
  interval_ = word(at + 4);
  return true;
}

bool JpegCropper::read_frame(std::size_t at, std::size_t size) {
  if (has_frame_ || size < 10) return false;
  has_frame_ = true;
  frame_ = at + 5;
  size_ = {word(at + 5), word(at + 7)};
  const int components = byte(at + 9);
  if (byte(at + 4) != 8 || size_.height == 0 || size_.width == 0) return false;
  if (components < 1 || components > 4 || size != 10 + 3 * static_cast<std::size_t>(components)) return false;
  sampling_.components = components;
  for (std::size_t c = 0; c < static_cast<std::size_t>(components); ++c) {
    const int factors = byte(at + 11 + 3 * c);
    const int horizontal = factors >> 4, vertical = factors & 15;
    if (horizontal < 1 || horizontal > 4 || vertical < 1 || vertical > 4) return false;
    sampling_.horizontal[c] = horizontal;
    sampling_.vertical[c] = vertical;
  }
  find_margin();
  return true;
}

// Interpolation reads the sample next to a pixel's own. Where there is none, a segment more would only take
// time, and damage there would show.
void JpegCropper::find_margin() {
  margin_across_ = margin_down_ = 0;
  for (int c = 0; c < sampling_.components; ++c) {
    const PlaneGrid grid = plane_grid(sampling_, c, size_, 1);
    if (!grid.interpolated) continue;
    if (grid.across == 2) margin_across_ = grid.across;
    if (grid.down == 2) margin_down_ = grid.down;
  }
}

// The one scan must hold all components: no other scan follows then.
bool JpegCropper::read_scan(std::size_t at, std::size_t size) {
  const int components = sampling_.components;
  return has_frame_ && size == 8 + 2 * static_cast<std::size_t>(components) && byte(at + 4) == components;
}

bool JpegCropper::plan_segments() {
  if (interval_ == 0) return false;
  // The MCU of a single component is one block, whatever its sampling factors.
  const std::int64_t mcu_width = kBlock * (sampling_.components == 1 ? 1 : sampling_.max_horizontal());
  const std::int64_t mcu_height = kBlock * (sampling_.components == 1 ? 1 : sampling_.max_vertical());
  const std::int64_t across = divide_up(size_.width, mcu_width), down = divide_up(size_.height, mcu_height);
  if (across % interval_ == 0) {
    segment_width_ = interval_ * mcu_width;
    segment_height_ = mcu_height;
    columns_ = across / interval_;
    rows_ = down;
  } else if (interval_ % across == 0) {
    const std::int64_t together = interval_ / across;
    segment_width_ = across * mcu_width;
    segment_height_ = together * mcu_height;
    columns_ = 1;
    rows_ = divide_up(down, together);
  } else {
    return false;
  }
  return columns_ * rows_ > 1;
}

// The next marker in entropy-coded data, or the end.
std::size_t JpegCropper::next_marker(std::size_t from) const {
  while (from < encoded_.size()) {
    const void* found = std::memchr(encoded_.data() + from, 0xFF, encoded_.size() - from);
    if (found == nullptr) break;
    const auto at = static_cast<std::size_t>(static_cast<const std::byte*>(found) - encoded_.data());
    if (at + 1 >= encoded_.size()) break;
    if (byte(at + 1) != 0) return at;
    from = at + 2;
  }
  return encoded_.size();
}

JpegCropper::Grid JpegCropper::cover(const Window& window) const {
  const std::int64_t left = std::max<std::int64_t>(window.left - margin_across_, 0);
  const std::int64_t top = std::max<std::int64_t>(window.top - margin_down_, 0);
  const std::int64_t right = std::min(window.right() + margin_across_, size_.width);
  const std::int64_t bottom = std::min(window.bottom() + margin_down_, size_.height);
  Grid grid{left / segment_width_, (right - 1) / segment_width_, top / segment_height_,
            (bottom - 1) / segment_height_};
  // libjpeg does not interpolate along rows where a component has two columns or fewer.
  const std::int64_t narrow = margin_across_ == 0 ? 0 : kBlock * sampling_.max_horizontal();
  while (grid.first_column > 0 && window_of(grid).width < narrow) --grid.first_column;
  return grid;
}

Window JpegCropper::window_of(const Grid& grid) const {
  Window window;
  window.left = grid.first_column * segment_width_;
  window.top = grid.first_row * segment_height_;
  window.width = std::min((grid.last_column + 1) * segment_width_, size_.width) - window.left;
  window.height = std::min((grid.last_row + 1) * segment_height_, size_.height) - window.top;
  return window;
}

std::byte* JpegCropper::copy_headers(std::byte* out, Size size) const {
  out = put_marker(out, kSoi);
  for (const Piece& piece : headers_) {
    std::memcpy(out, encoded_.data() + piece.first, piece.size);
    if (frame_ > piece.first && frame_ < piece.first + piece.size) {
      put_word(out + (frame_ - piece.first), size.height);
      put_word(out + (frame_ - piece.first) + 2, size.width);
    }
    out += piece.size;
  }
  return out;
}

// Null where a marker is missing or another than it should be.
std::byte* JpegCropper::copy_segments(std::byte* out, const Grid& grid) const {
  std::size_t begin = data_;
  int restart = 0;
  for (std::int64_t row = 0; row <= grid.last_row; ++row)
    for (std::int64_t column = 0; column < columns_; ++column) {
      if (row == grid.last_row && column > grid.last_column) return out;
      const std::size_t end = next_marker(begin);
      if (end == encoded_.size()) return nullptr;
      const std::int64_t index = row * columns_ + column;
      const int expected = index + 1 == columns_ * rows_ ? kEoi : kRst0 + static_cast<int>(index % 8);
      if (byte(end + 1) != expected) return nullptr;
      if (row >= grid.first_row && column >= grid.first_column && column <= grid.last_column) {
        const bool last = row == grid.last_row && column == grid.last_column;
        std::memcpy(out, encoded_.data() + begin, end - begin);
        out = put_marker(out + (end - begin), last ? kEoi : kRst0 + restart);
        restart = (restart + 1) % 8;
      }
      begin = end + 2;
    }
  return out;
}

std::optional<JpegCropper::Part> JpegCropper::assemble(const Window& window) {
  const Grid grid = cover(window);
  const Window shown = window_of(grid);
  if (shown == whole(size_)) return std::nullopt;
  // Every byte but the padding replaces one of the source.
  std::byte* const first = stream_.reserve(encoded_.size() + kPadding);
  std::byte* const last = copy_segments(copy_headers(first, {shown.height, shown.width}), grid);
  if (last == nullptr) return std::nullopt;
  std::memset(last, 0, kPadding);
  return Part{{first, static_cast<std::size_t>(last - first) + kPadding}, shown};
}

}  // namespace fastload::image

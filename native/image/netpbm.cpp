#include "image/netpbm.h"

#include <cstdint>
#include <string>

#include "core/error.h"

namespace fastload::image {
namespace {

bool is_space(std::byte value) {
  const auto c = static_cast<char>(value);
  return c == ' ' || (c >= '\t' && c <= '\r');
}

// Reads the header's numbers one after another.
class Header {
 public:
  explicit Header(std::span<const std::byte> encoded) : rest_(encoded.subspan(2)) {}

  // The next number, of at most nine digits, and the one white space behind it; empty for anything else.
  std::optional<std::int64_t> number() {
    std::size_t at = 0;
    while (at < rest_.size() && is_space(rest_[at])) ++at;
    const std::size_t first = at;
    std::int64_t value = 0;
    for (; at < rest_.size() && at < first + 9; ++at) {
      const auto digit = static_cast<unsigned>(rest_[at]) - '0';
      if (digit > 9) break;
      value = value * 10 + digit;
    }
    if (first == 0 || at == first || at == rest_.size() || !is_space(rest_[at])) return std::nullopt;
    rest_ = rest_.subspan(at);
    return value;
  }

  // What follows the white space behind the last number.
  std::span<const std::byte> pixels() const { return rest_.subspan(1); }

 private:
  std::span<const std::byte> rest_;
};

}  // namespace

std::optional<View> view_netpbm(std::span<const std::byte> encoded, int channels) {
  if (encoded.size() < 2 || encoded[0] != std::byte{'P'} ||
      encoded[1] != (channels == 1 ? std::byte{'5'} : std::byte{'6'}))
    return std::nullopt;
  Header header(encoded);
  const auto width = header.number(), height = header.number(), most = header.number();
  if (!width || !height || !most || *width == 0 || *height == 0 || *most != 255) return std::nullopt;
  if (*width > kMaxPixels / *height)
    throw Error(ErrorKind::decode, "the image has " + std::to_string(*width) + " x " +
                                       std::to_string(*height) +
                                       " pixels, more than the limit of 178,956,970");
  const auto needed = static_cast<std::size_t>(*width * *height * channels);
  const auto pixels = header.pixels();
  if (pixels.size() < needed)
    throw Error(ErrorKind::decode, "the image is truncated: " + std::to_string(pixels.size()) + " of " +
                                       std::to_string(needed) + " bytes of pixels");
  return View{reinterpret_cast<const std::uint8_t*>(pixels.data()),
              static_cast<std::size_t>(*width * channels), whole({*height, *width})};
}

}  // namespace fastload::image

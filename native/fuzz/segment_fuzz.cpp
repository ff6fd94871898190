// A JPEG image, sound or not, rewritten in segments and cut by segments. The last bytes choose the window.
// What the scanline path decodes must come out the same by segments, from the source and from its rewriting;
// and whoever decodes the Huffman codes, libjpeg or we, damage included.
//   build/fuzz/segment_fuzz -max_len=20000 CORPUS
// It makes its own seeds: CORPUS may be empty.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <optional>
#include <vector>

#include "core/error.h"
#include "fuzz/jpeg_inputs.h"
#include "image/jpeg.h"
#include "image/jpeg_segment.h"

namespace {

using namespace fastload;
using namespace fastload::image;
using Pixels = std::vector<std::uint8_t>;

constexpr std::int64_t kSlow = 1 << 20;  // pixels: within the limits, but slow to fuzz

std::optional<Pixels> decode(std::span<const std::byte> encoded, const Window& window,
                             const DecodeChoice& choice) {
  JpegDecoder decoder;
  try {
    decoder.open(encoded);
    const View view = decoder.decode(window, 3, choice);
    Pixels pixels;
    for (std::int64_t y = window.top; y < window.bottom(); ++y) {
      const std::uint8_t* row = view.at(y, window.left, 3);
      pixels.insert(pixels.end(), row, row + window.width * 3);
    }
    return pixels;
  } catch (const Error&) {
    return std::nullopt;
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static fuzz::Reached reached({"images", "with headers", "rewritten", "decoded", "cut"});
  const auto input = fuzz::split(data, size);
  if (!input) return 0;
  const auto& [encoded, choices] = *input;
  reached.count(0);
  const Segmented segmented = segment_jpeg(encoded, choices[4] % 2 == 0);
  if (segmented.encoded.empty() == segmented.reason.empty()) std::abort();
  if (segmented.encoded.size() > encoded.size()) std::abort();
  Size image;
  try {
    image = JpegDecoder().open(encoded);
  } catch (const Error&) {
    return 0;
  }
  if (image.height * image.width > kSlow) return 0;
  const auto part = [](std::int64_t side, int at, int length, std::int64_t& begin, std::int64_t& extent) {
    begin = side * at / 256;
    extent = std::max<std::int64_t>((side - begin) * length / 255, 1);
  };
  Window window;
  reached.count(1);
  if (!segmented.encoded.empty()) reached.count(2);
  part(image.height, choices[0], choices[1], window.top, window.height);
  part(image.width, choices[2], choices[3], window.left, window.width);
  const DecodeChoice by_libjpeg{.by_segments = false, .by_libjpeg = true}, by_segments;
  const auto plain = decode(encoded, window, by_libjpeg), parts = decode(encoded, window, by_segments);
  if (plain) reached.count(3);
  if (JpegCropper cropper; cropper.open(encoded) && cropper.assemble(window)) reached.count(4);
  if (plain != decode(encoded, window, {.by_segments = false})) std::abort();
  if (parts != decode(encoded, window, {.by_libjpeg = true})) std::abort();
  if (plain && plain != parts) std::abort();
  if (!segmented.encoded.empty() && plain && plain != decode(segmented.encoded, window, by_segments))
    std::abort();
  return 0;
}

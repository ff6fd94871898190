// Parts of JPEG images are decoded to the pixels of the whole; damaged ones are refused.
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "check.h"
#include "core/error.h"
#include "image/jpeg.h"
#include "image_fixtures.h"

namespace {

using namespace fastload;
using namespace fastload::image;
using namespace fastload::image::fixtures;

std::vector<std::uint8_t> part(std::span<const std::byte> encoded, const Window& window, int channels) {
  JpegDecoder decoder;
  decoder.open(encoded);
  const View view = decoder.decode(window, channels);
  CHECK(view.window.left <= window.left && view.window.right() >= window.right());
  std::vector<std::uint8_t> pixels;
  const auto bytes = static_cast<std::size_t>(window.width * channels);
  for (std::int64_t y = window.top; y < window.bottom(); ++y) {
    const std::uint8_t* row = view.at(y, window.left, channels);
    pixels.insert(pixels.end(), row, row + bytes);
  }
  return pixels;
}

std::vector<std::uint8_t> cut(const std::vector<std::uint8_t>& pixels, Size size, const Window& window,
                              int channels) {
  std::vector<std::uint8_t> result;
  for (std::int64_t y = window.top; y < window.bottom(); ++y) {
    const auto first = pixels.begin() + (y * size.width + window.left) * channels;
    result.insert(result.end(), first, first + window.width * channels);
  }
  return result;
}

void check_windows(const JpegOptions& options, const std::vector<Window>& windows) {
  const auto encoded = make_jpeg(options);
  const Size size{options.height, options.width};
  for (const int channels : {3, 1}) {
    const auto all = part(encoded, whole(size), channels);
    for (const Window& window : windows) {
      if (!inside(window, size)) continue;
      const bool same = part(encoded, window, channels) == cut(all, size, window, channels);
      if (!same)
        std::fprintf(stderr, "%d x %d h%d v%d prog %d restart %d channels %d: window %ld %ld %ld %ld\n",
                     options.width, options.height, options.horizontal, options.vertical, options.progressive,
                     options.restart, channels, static_cast<long>(window.top), static_cast<long>(window.left),
                     static_cast<long>(window.height), static_cast<long>(window.width));
      CHECK(same);
    }
  }
}

std::vector<Window> random_windows(int height, int width, int count, unsigned seed) {
  Random random(seed);
  std::vector<Window> windows;
  for (int i = 0; i < count; ++i) {
    Window w;
    w.height = 1 + random.below(static_cast<unsigned>(height));
    w.width = 1 + random.below(static_cast<unsigned>(width));
    w.top = random.below(static_cast<unsigned>(height - w.height + 1));
    w.left = random.below(static_cast<unsigned>(width - w.width + 1));
    windows.push_back(w);
  }
  return windows;
}

void test_parts_equal_the_whole() {
  const int samplings[][2] = {{1, 1}, {2, 1}, {2, 2}, {1, 2}, {4, 1}, {4, 2}, {1, 4}, {0, 0}};
  const int sizes[][2] = {{1, 1},   {2, 3},   {7, 9},    {8, 8},     {16, 16},
                          {17, 33}, {50, 40}, {97, 131}, {120, 200}, {33, 300}};
  for (const auto& sampling : samplings)
    for (const bool progressive : {false, true})
      for (const int restart : {0, 1, 5})
        for (const auto& size : sizes) {
          JpegOptions options;
          options.horizontal = sampling[0];
          options.vertical = sampling[1];
          options.progressive = progressive;
          options.restart = restart;
          options.height = size[0];
          options.width = size[1];
          check_windows(options,
                        random_windows(size[0], size[1], 25, static_cast<unsigned>(size[0] * 31 + size[1])));
        }
}

void test_every_row_and_column() {
  for (const auto& sampling : {std::pair{1, 1}, {2, 1}, {2, 2}, {1, 2}, {4, 1}}) {
    JpegOptions options;
    options.horizontal = sampling.first;
    options.vertical = sampling.second;
    options.height = 53;
    options.width = 201;
    std::vector<Window> windows;
    for (int top = 0; top < 53; ++top)
      for (const int height : {1, 2, 9}) windows.push_back({top, 70, height, 40});
    for (int left = 0; left < 201; ++left)
      for (const int width : {1, 2, 17}) windows.push_back({20, left, 5, width});
    check_windows(options, windows);
  }
}

void test_four_components() {
  for (const bool ycck : {false, true}) {
    JpegOptions options;
    options.components = 4;
    options.ycck = ycck;
    options.height = 61;
    options.width = 90;
    check_windows(options, random_windows(61, 90, 30, 5));
  }
}

bool is_refused(std::span<const std::byte> encoded, const Window& window) {
  JpegDecoder decoder;
  try {
    decoder.open(encoded);
    decoder.decode(window, 3);
  } catch (const Error& error) {
    CHECK(error.kind == ErrorKind::decode);
    return true;
  }
  return false;
}

void test_truncated() {
  for (const bool progressive : {false, true}) {
    JpegOptions options;
    options.progressive = progressive;
    options.height = 64;
    options.width = 80;
    const auto encoded = make_jpeg(options);
    const std::span<const std::byte> all(encoded);
    CHECK(!is_refused(all, {0, 0, 1, 1}));
    // Whatever the window asks for; at the very end a missing marker (and a byte of padding) is no loss.
    for (std::size_t size = 0; size + 8 < encoded.size(); ++size) {
      CHECK(is_refused(all.first(size), {0, 0, 1, 1}));
      CHECK(is_refused(all.first(size), {63, 0, 1, 1}));
    }
  }
}

void test_damage_and_bombs() {
  JpegOptions options;
  options.height = 64;
  options.width = 80;
  auto encoded = make_jpeg(options);
  auto bomb = encoded;
  for (std::size_t i = 0; i + 9 < bomb.size(); ++i)
    if (bomb[i] == std::byte{0xFF} && bomb[i + 1] == std::byte{0xC0})
      for (int k = 5; k < 9; ++k) bomb[i + k] = std::byte{0x3F};
  CHECK(is_refused(bomb, {0, 0, 1, 1}));
  CHECK(is_refused({}, {0, 0, 1, 1}));
  // A restart marker in the middle of data that has none.
  encoded[encoded.size() - 200] = std::byte{0xFF};
  encoded[encoded.size() - 199] = std::byte{0xD0};
  CHECK(is_refused(encoded, {63, 0, 1, 80}));
}

void test_tables_do_not_leak_into_the_next_image() {
  JpegOptions options;
  options.height = 32;
  options.width = 32;
  const auto good = make_jpeg(options);
  options.tables = false;
  const auto bare = make_jpeg(options);
  JpegDecoder decoder;
  decoder.open(good);
  decoder.decode({0, 0, 32, 32}, 3);
  bool refused = false;
  try {
    decoder.open(bare);
    decoder.decode({0, 0, 32, 32}, 3);
  } catch (const Error&) {
    refused = true;
  }
  CHECK(refused);
}

}  // namespace

int main() {
  test_parts_equal_the_whole();
  test_every_row_and_column();
  test_four_components();
  test_truncated();
  test_damage_and_bombs();
  test_tables_do_not_leak_into_the_next_image();
  return test::finish("image_jpeg");
}

// Rewriting JPEG images keeps their coefficients; parts cut out of them decode to the pixels of the whole.
#include <algorithm>
#include <csetjmp>
#include <cstring>
#include <string>
#include <vector>

#include "check.h"
#include "core/error.h"
#include "image/jpeg.h"
#include "image/jpeg_crop.h"
#include "image/jpeg_segment.h"
#include "image_fixtures.h"

namespace {

using namespace fastload;
using namespace fastload::image;
using namespace fastload::image::fixtures;
using Bytes = std::vector<std::byte>;

// Every coefficient and quantisation table, by libjpeg alone. The images are sound: errors end the test.
struct Coefficients {
  std::vector<std::int16_t> blocks;
  std::vector<std::uint16_t> tables;
  std::vector<int> shape;
  unsigned interval = 0;
  bool is_progressive = false;
  std::vector<int> markers;
};

Coefficients coefficients_of(const Bytes& encoded) {
  Coefficients result;
  jpeg_decompress_struct codec;
  jpeg_error_mgr errors;
  codec.err = jpeg_std_error(&errors);
  jpeg_create_decompress(&codec);
  jpeg_mem_src(&codec, reinterpret_cast<const unsigned char*>(encoded.data()), encoded.size());
  for (int marker = 0; marker < 16; ++marker) jpeg_save_markers(&codec, JPEG_APP0 + marker, 0xFFFF);
  jpeg_save_markers(&codec, JPEG_COM, 0xFFFF);
  jpeg_read_header(&codec, TRUE);
  result.is_progressive = codec.progressive_mode != FALSE;
  jvirt_barray_ptr* arrays = jpeg_read_coefficients(&codec);
  result.interval = codec.restart_interval;
  result.shape = {static_cast<int>(codec.image_width), static_cast<int>(codec.image_height),
                  codec.num_components, static_cast<int>(codec.jpeg_color_space)};
  for (auto* marker = codec.marker_list; marker != nullptr; marker = marker->next)
    result.markers.push_back(marker->marker);
  for (int c = 0; c < codec.num_components; ++c) {
    const jpeg_component_info& component = codec.comp_info[c];
    result.shape.push_back(component.h_samp_factor * 16 + component.v_samp_factor);
    result.tables.insert(result.tables.end(), component.quant_table->quantval,
                         component.quant_table->quantval + DCTSIZE2);
    for (JDIMENSION row = 0; row < component.height_in_blocks; ++row) {
      const JBLOCKARRAY blocks =
          (*codec.mem->access_virt_barray)(reinterpret_cast<j_common_ptr>(&codec), arrays[c], row, 1, FALSE);
      const auto* first = reinterpret_cast<const std::int16_t*>(blocks[0]);
      result.blocks.insert(result.blocks.end(), first, first + component.width_in_blocks * DCTSIZE2);
    }
  }
  jpeg_destroy_decompress(&codec);
  return result;
}

std::vector<std::uint8_t> decode(std::span<const std::byte> encoded, const Window& window, int channels,
                                 const DecodeChoice& choice) {
  JpegDecoder decoder;
  decoder.open(encoded);
  const View view = decoder.decode(window, channels, choice);
  CHECK(view.window.left <= window.left && view.window.right() >= window.right());
  std::vector<std::uint8_t> pixels;
  for (std::int64_t y = window.top; y < window.bottom(); ++y) {
    const std::uint8_t* row = view.at(y, window.left, channels);
    pixels.insert(pixels.end(), row, row + window.width * channels);
  }
  return pixels;
}

std::vector<std::uint8_t> decode(std::span<const std::byte> encoded, const Window& window, int channels,
                                 bool by_segments) {
  return decode(encoded, window, channels, DecodeChoice{.by_segments = by_segments});
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

const int kSamplings[][2] = {{1, 1}, {2, 1}, {2, 2}, {1, 2}, {4, 1}, {1, 4}, {4, 2}, {3, 1}, {0, 0}};
// Widths of 1 to 31 MCUs, whole and broken; primes have no interval near 4.
const int kSizes[][2] = {{1, 1},    {7, 17},   {16, 16},  {50, 40}, {33, 127},
                         {97, 131}, {65, 184}, {40, 251}, {24, 256}};

Bytes rewritten(const Bytes& encoded, const char* expected_reason = "") {
  Segmented result = segment_jpeg(encoded, false);
  CHECK(result.reason == expected_reason);
  if (result.reason != expected_reason) std::printf("reason: %s\n", result.reason.c_str());
  return result.encoded;
}

void test_coefficients_stay() {
  for (const auto& sampling : kSamplings)
    for (const auto& size : kSizes)
      for (const int quality : {30, 85, 100})
        for (const bool progressive : {false, true}) {
          JpegOptions options;
          options.horizontal = sampling[0];
          options.vertical = sampling[1];
          options.height = size[0];
          options.width = size[1];
          options.quality = quality;
          options.progressive = progressive;
          const Bytes source = make_jpeg(options);
          const Segmented result = segment_jpeg(source, false);
          if (result.encoded.empty()) {
            CHECK(result.reason == "would become larger");
            continue;
          }
          CHECK(result.encoded.size() <= source.size());
          const Coefficients before = coefficients_of(source), after = coefficients_of(result.encoded);
          CHECK(before.blocks == after.blocks);
          CHECK(before.tables == after.tables);
          CHECK(before.shape == after.shape);
          CHECK(!after.is_progressive && after.interval != 0);
          CHECK(decode(source, whole({size[0], size[1]}), 3, false) ==
                decode(result.encoded, whole({size[0], size[1]}), 3, false));
        }
}

void test_intervals() {
  const unsigned expected[][2] = {{1, 1},  {2, 2},  {3, 3},     {4, 4},   {5, 5},    {6, 3},
                                  {7, 7},  {8, 4},  {9, 3},     {10, 5},  {11, 11},  {14, 2},
                                  {15, 5}, {18, 3}, {22, 2},    {26, 2},  {32, 4},   {35, 5},
                                  {49, 7}, {63, 3}, {121, 121}, {125, 5}, {127, 127}};
  for (const auto& pair : expected) CHECK(restart_interval(pair[0]) == pair[1]);
}

void check_windows(const Bytes& encoded, Size size, const std::vector<Window>& windows, const char* what) {
  for (const int channels : {3, 1}) {
    const auto all = decode(encoded, whole(size), channels, false);
    for (const Window& window : windows) {
      const bool same = decode(encoded, window, channels, true) == cut(all, size, window, channels);
      if (!same)
        std::printf("%s, %ld x %ld, channels %d: window %ld %ld %ld %ld\n", what,
                    static_cast<long>(size.width), static_cast<long>(size.height), channels,
                    static_cast<long>(window.top), static_cast<long>(window.left),
                    static_cast<long>(window.height), static_cast<long>(window.width));
      CHECK(same);
    }
  }
}

std::vector<Window> random_windows(Size size, int count, unsigned seed) {
  Random random(seed);
  std::vector<Window> windows;
  for (int i = 0; i < count; ++i) {
    Window w;
    // Half of them small: those leave out most segments.
    const auto most = [&](std::int64_t side) {
      return static_cast<unsigned>(i % 2 == 0 ? side : std::min<std::int64_t>(side, 20));
    };
    w.height = 1 + random.below(most(size.height));
    w.width = 1 + random.below(most(size.width));
    w.top = random.below(static_cast<unsigned>(size.height - w.height + 1));
    w.left = random.below(static_cast<unsigned>(size.width - w.width + 1));
    windows.push_back(w);
  }
  return windows;
}

// Intervals as other encoders write them too: single MCUs, rows and several rows, and what divides nothing.
void test_parts_equal_the_whole() {
  for (const auto& sampling : kSamplings)
    for (const auto& size : kSizes) {
      JpegOptions options;
      options.horizontal = sampling[0];
      options.vertical = sampling[1];
      options.height = size[0];
      options.width = size[1];
      const int horizontal = sampling[0] == 0 ? 1 : sampling[0];
      const int across = (size[1] + 8 * horizontal - 1) / (8 * horizontal);
      for (const int interval : {1, 2, 3, 4, 5, across, 2 * across, 3 * across, across + 1}) {
        options.restart = interval;
        const Bytes encoded = make_jpeg(options);
        char what[64];
        std::snprintf(what, sizeof what, "h%d v%d interval %d", sampling[0], sampling[1], interval);
        check_windows(encoded, {size[0], size[1]}, random_windows({size[0], size[1]}, 16, 7), what);
      }
    }
}

void test_every_position() {
  for (const auto& sampling : {std::pair{1, 1}, {2, 1}, {2, 2}, {1, 2}, {4, 1}, {0, 0}}) {
    JpegOptions options;
    options.horizontal = sampling.first;
    options.vertical = sampling.second;
    options.height = 53;
    options.width = 201;
    options.restart = 1;
    std::vector<Window> windows;
    for (int top = 0; top < 53; ++top)
      for (const int height : {1, 2, 9})
        if (top + height <= 53) windows.push_back({top, 70, height, 40});
    for (int left = 0; left < 201; ++left)
      for (const int width : {1, 2, 17})
        if (left + width <= 201) windows.push_back({20, left, 5, width});
    check_windows(make_jpeg(options), {53, 201}, windows, "every position");
  }
}

void test_rewritten_parts() {
  for (const bool progressive : {false, true})
    for (const int components : {3, 4}) {
      JpegOptions options;
      options.height = 120;
      options.width = 200;
      options.components = components;
      options.ycck = components == 4;
      options.progressive = progressive;
      options.quality = 95;
      const Bytes source = make_jpeg(options), result = segment_jpeg(source, false).encoded;
      if (result.empty()) continue;  // progressive coding took fewer bytes
      CHECK(JpegCropper().open(result));
      const Size size{120, 200};
      const auto all = decode(source, whole(size), 3, false);
      for (const Window& window : random_windows(size, 40, 11))
        CHECK(decode(result, window, 3, true) == cut(all, size, window, 3));
    }
}

// Smaller images too do not depend on the window.
void test_divided_parts() {
  for (const auto& sampling : kSamplings)
    for (const int denominator : {1, 2, 4, 8})
      for (const int restart : {0, 1, 2}) {
        JpegOptions options;
        options.horizontal = sampling[0];
        options.vertical = sampling[1];
        options.height = 133;
        options.width = 251;
        options.restart = restart;
        const Bytes encoded = make_jpeg(options);
        const Size size{(133 + denominator - 1) / denominator, (251 + denominator - 1) / denominator};
        for (const int channels : {3, 1}) {
          const auto all = decode(encoded, whole(size), channels, {denominator, false});
          for (const Window& window : random_windows(size, 20, 3))
            for (const bool by_segments : {false, true})
              CHECK(decode(encoded, window, channels, {denominator, by_segments}) ==
                    cut(all, size, window, channels));
        }
      }
}

Bytes with_marker(const Bytes& encoded, int marker, const std::string& text) {
  Bytes result(encoded.begin(), encoded.begin() + 2);
  const std::size_t length = text.size() + 2;
  for (const std::size_t value :
       {std::size_t{0xFF}, static_cast<std::size_t>(marker), length >> 8, length & 255})
    result.push_back(static_cast<std::byte>(value));
  for (const char c : text) result.push_back(static_cast<std::byte>(c));
  result.insert(result.end(), encoded.begin() + 2, encoded.end());
  return result;
}

void test_metadata() {
  JpegOptions options;
  options.quality = 95;
  const Bytes plain = make_jpeg(options);
  const std::string icc = std::string("ICC_PROFILE\0\1\1", 14) + std::string(200, 'i');
  const std::string turned(
      "Exif\0\0II*\0\10\0\0\0\2\0\xF\1\2\0\1\0\0\0a\0\0\0\x12\1\3\0\1\0\0\0\6\0\0\0\0\0\0\0", 44);
  const std::string upright("Exif\0\0MM\0*\0\0\0\10\0\1\1\x12\0\3\0\0\0\1\0\1\0\0\0\0\0\0", 32);
  const auto markers = [](const Bytes& encoded, bool keep_icc) {
    const Segmented result = segment_jpeg(encoded, keep_icc);
    CHECK(!result.encoded.empty());
    return coefficients_of(result.encoded).markers;
  };
  using List = std::vector<int>;
  CHECK((markers(plain, false) == List{JPEG_APP0}));
  CHECK((markers(with_marker(plain, JPEG_COM, "hello"), false) == List{JPEG_APP0}));
  CHECK((markers(with_marker(plain, JPEG_APP0 + 1, upright), false) == List{JPEG_APP0}));
  CHECK((markers(with_marker(plain, JPEG_APP0 + 1, turned), false) == List{JPEG_APP0, JPEG_APP0 + 1}));
  CHECK((markers(with_marker(plain, JPEG_APP0 + 2, icc), false) == List{JPEG_APP0}));
  CHECK((markers(with_marker(plain, JPEG_APP0 + 2, icc), true) == List{JPEG_APP0, JPEG_APP0 + 2}));
  for (std::size_t size = 0; size < turned.size(); ++size)  // cut off anywhere
    CHECK(!segment_jpeg(with_marker(plain, JPEG_APP0 + 1, turned.substr(0, size)), false).encoded.empty());
  options.components = 4;
  options.ycck = true;
  CHECK((markers(make_jpeg(options), false) == List{JPEG_APP0 + 14}));
}

std::size_t find_marker(const Bytes& encoded, int marker, std::size_t from = 0) {
  for (std::size_t i = from; i + 1 < encoded.size(); ++i)
    if (encoded[i] == std::byte{0xFF} && encoded[i + 1] == static_cast<std::byte>(marker)) return i;
  return encoded.size();
}

void test_kept() {
  JpegOptions options;
  options.height = 64;
  options.width = 80;
  options.quality = 95;
  const Bytes good = make_jpeg(options);
  CHECK(rewritten({}, "damaged").empty());
  Bytes bad = good;
  bad[find_marker(bad, 0xC0) + 4] = std::byte{12};
  CHECK(rewritten(bad, "not 8 bits a sample").empty());
  bad = good;
  bad[find_marker(bad, 0xC0) + 1] = std::byte{0xC3};
  CHECK(rewritten(bad, "lossless or hierarchical").empty());
  bad = good;
  bad[find_marker(bad, 0xC0) + 1] = std::byte{0xC9};
  CHECK(rewritten(bad, "arithmetic coding").empty());
  bad = good;
  bad[find_marker(bad, 0xC0) + 5] = bad[find_marker(bad, 0xC0) + 6] = std::byte{0};
  CHECK(rewritten(bad, "its height comes after its data (DNL)").empty());
  for (const bool progressive : {false, true}) {
    options.progressive = progressive;
    const Bytes all = make_jpeg(options);
    for (std::size_t size = 0; size < all.size(); ++size)
      CHECK(segment_jpeg(std::span(all).first(size), false).encoded.empty());
  }
  options.progressive = false;
  options.components = 4;
  bad = make_jpeg(options);  // CMYK; its Adobe marker becomes one that nobody knows
  bad[find_marker(bad, 0xEE) + 1] = std::byte{0xED};
  CHECK(rewritten(bad, "CMYK without an Adobe marker").empty());
  // What is rewritten already stays as it is.
  const Bytes once = rewritten(good);
  CHECK(rewritten(once) == once);
}

enum class Result { fails, decodes };

Result outcome(std::span<const std::byte> encoded, const Window& window, bool by_segments) {
  JpegDecoder decoder;
  try {
    decoder.open(encoded);
    decoder.decode(window, 3, {.by_segments = by_segments});
  } catch (const Error& error) {
    CHECK(error.kind == ErrorKind::decode);
    return Result::fails;
  }
  return Result::decodes;
}

// Where markers are not as they should be, the image is decoded as without segments.
void test_bad_markers() {
  JpegOptions options;
  options.height = 64;
  options.width = 160;
  options.restart = 5;
  const Bytes good = make_jpeg(options);
  const Window last{60, 150, 4, 10}, first{0, 0, 4, 4};
  CHECK(JpegCropper().open(good));
  const std::size_t restart = find_marker(good, 0xD2);
  for (const int value : {0xD3, 0xD9, 0xC4, 0x00, 0xFF}) {
    Bytes bad = good;
    bad[restart + 1] = static_cast<std::byte>(value);
    JpegCropper cropper;
    CHECK(cropper.open(bad));
    CHECK(!cropper.assemble(last));
    CHECK(cropper.assemble(first));  // what comes later is not looked at
    CHECK(outcome(bad, last, true) == outcome(bad, last, false));
  }
  Bytes filled = good;
  filled.insert(filled.begin() + static_cast<std::ptrdiff_t>(restart),
                std::byte{0xFF});  // a fill byte: allowed
  CHECK(outcome(filled, last, true) == Result::decodes);
  CHECK(decode(filled, last, 3, true) == decode(good, last, 3, true));
  // Truncated images fail whatever is asked of them.
  for (std::size_t size = 0; size + 8 < good.size(); size += 7) {
    CHECK(outcome(std::span(good).first(size), first, true) == Result::fails);
    CHECK(outcome(std::span(good).first(size), last, true) == Result::fails);
  }
}

// The image with the segments for which `damaged` holds (by their number) emptied.
template <typename Damaged>
Bytes emptied(const Bytes& encoded, Damaged damaged) {
  std::size_t begin = find_marker(encoded, 0xDA);
  begin += 2 + std::to_integer<std::size_t>(encoded[begin + 3]);
  Bytes result(encoded.begin(), encoded.begin() + static_cast<std::ptrdiff_t>(begin));
  for (int number = 0; begin < encoded.size(); ++number) {
    std::size_t end = begin;
    while (encoded[end] != std::byte{0xFF} || encoded[end + 1] == std::byte{0}) ++end;
    if (damaged(number)) begin = end;
    for (; begin < end + 2; ++begin) result.push_back(encoded[begin]);
  }
  return result;
}

// Segments beside a window whose pixels no interpolation makes of them may be damaged.
void test_damage_beside() {
  const int alone_down[][2] = {{0, 0}, {1, 1}, {2, 1}, {4, 1}, {4, 2}, {1, 4}};
  const int alone_across[][2] = {{0, 0}, {1, 1}, {1, 2}, {4, 1}, {4, 2}, {1, 4}};
  for (const bool down : {false, true})
    for (const auto& sampling : down ? alone_down : alone_across) {
      const int height = 8 * std::max(sampling[1], 1), width = 8 * std::max(sampling[0], 1);
      JpegOptions options;
      options.horizontal = sampling[0];
      options.vertical = sampling[1];
      options.height = 5 * height;
      options.width = 6 * width + 1;
      options.restart = down ? 7 : 1;
      const Bytes good = make_jpeg(options);
      const int columns = down ? 1 : 7;
      for (int number = 0; number < 5 * columns; ++number) {
        Window window{number / columns * height, number % columns * width, height, width};
        if (down) window.width = options.width;
        window.width = std::min<std::int64_t>(window.width, options.width - window.left);
        const auto pixels = decode(good, window, 3, false);
        const auto beside = [&](int i) { return i != number && (down || i / columns == number / columns); };
        CHECK(decode(emptied(good, beside), window, 3, true) == pixels);
        if (!down) continue;
        const Bytes cut_below = emptied(good, [&](int i) { return i > number; });
        CHECK(decode(cut_below, window, 3, false) == pixels);
        CHECK(outcome(cut_below, whole({options.height, options.width}), true) ==
              (number == 4 ? Result::decodes : Result::fails));
      }
    }
}

void test_damaged_bytes_never_read_outside() {
  JpegOptions options;
  options.height = 40;
  options.width = 100;
  options.restart = 1;
  const Bytes good = make_jpeg(options);
  Random random(5);
  for (int i = 0; i < 4000; ++i) {
    Bytes bad = good;
    for (std::int64_t k = random.below(3); k >= 0; --k)
      bad[static_cast<std::size_t>(random.below(static_cast<unsigned>(bad.size())))] =
          static_cast<std::byte>(random.below(256));
    const Segmented result = segment_jpeg(bad, true);
    CHECK(result.encoded.empty() != result.reason.empty());
    JpegDecoder decoder;
    try {
      const Size size = decoder.open(bad);
      if (size.height * size.width > 1 << 22) continue;
      decoder.decode({size.height / 2, size.width / 3, (size.height + 3) / 4, (size.width + 3) / 4}, 3);
    } catch (const Error& error) {
      CHECK(error.kind == ErrorKind::decode);
    }
  }
}

}  // namespace

int main() {
  test_intervals();
  test_coefficients_stay();
  test_parts_equal_the_whole();
  test_every_position();
  test_rewritten_parts();
  test_divided_parts();
  test_metadata();
  test_kept();
  test_bad_markers();
  test_damage_beside();
  test_damaged_bytes_never_read_outside();
  return test::finish("image_segment");
}

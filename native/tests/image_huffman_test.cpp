// Our Huffman decoding against libjpeg's: the same coefficients, the same pixels, the same end for damage.
#include <algorithm>
#include <csetjmp>
#include <optional>
#include <vector>

#include "check.h"
#include "core/error.h"
#include "image/huffman.h"
#include "image/huffman_check.h"
#include "image/jpeg.h"
#include "image/jpeg_codec.h"
#include "image_fixtures.h"

namespace {

using namespace fastload;
using namespace fastload::image;
using namespace fastload::image::fixtures;
using Bytes = std::vector<std::byte>;
using Blocks = std::vector<std::int16_t>;

std::jmp_buf jump;

// Every coefficient of a baseline image, in the order of MCUs. read() is false where libjpeg fails or warns,
// or we give up.
struct Coefficients {
  jpeg_decompress_struct codec;
  jpeg_error_mgr errors;
  MemorySource source;
  HuffmanDecoder huffman;
  Blocks blocks;

  bool read(const Bytes& encoded, bool ours) {
    codec.err = jpeg_std_error(&errors);
    errors.error_exit = [](j_common_ptr) { std::longjmp(jump, 1); };
    errors.emit_message = [](j_common_ptr, int level) {
      if (level < 0) std::longjmp(jump, 1);
    };
    jpeg_create_decompress(&codec);
    const bool done = decode(encoded, ours);
    jpeg_destroy_decompress(&codec);
    return done;
  }

  bool decode(const Bytes& encoded, bool ours) {
    if (setjmp(jump) != 0) return false;
    codec.src = &source;
    source.start(encoded);
    source.huffman = &huffman;
    jpeg_read_header(&codec, TRUE);
    jpeg_start_decompress(&codec);
    CHECK(can_replace_entropy(codec));
    if (ours) CHECK(huffman.attach(codec));
    const std::size_t count = codec.MCUs_per_row * codec.MCU_rows_in_scan;
    const auto size = static_cast<std::size_t>(codec.blocks_in_MCU) * DCTSIZE2;
    blocks.assign(count * size, 0);
    for (std::size_t mcu = 0; mcu < count; ++mcu) {
      JBLOCKROW rows[D_MAX_BLOCKS_IN_MCU];
      for (std::size_t b = 0; b < size / DCTSIZE2; ++b)
        rows[b] = reinterpret_cast<JBLOCKROW>(blocks.data() + mcu * size + b * DCTSIZE2);
      if (entropy_head(codec).decode_mcu(&codec, rows) == FALSE) return false;
    }
    return true;
  }
};

void check_coefficients(const JpegOptions& options) {
  const Bytes encoded = make_jpeg(options);
  Coefficients theirs, ours;
  CHECK(theirs.read(encoded, false));
  CHECK(ours.read(encoded, true));
  CHECK(!theirs.blocks.empty() && theirs.blocks == ours.blocks);
}

void test_coefficients() {
  for (const auto& sampling :
       {std::pair{1, 1}, {2, 1}, {2, 2}, {1, 2}, {4, 1}, {1, 4}, {4, 2}, {3, 1}, {0, 0}})
    for (const int restart : {0, 1, 2, 3, 7, 100})
      for (const int quality : {10, 75, 100})
        for (const bool optimised : {false, true}) {
          JpegOptions options;
          options.width = 131;
          options.height = 77;
          options.horizontal = sampling.first;
          options.vertical = sampling.second;
          options.restart = restart;
          options.quality = quality;
          options.optimised = optimised;
          check_coefficients(options);
        }
}

void test_every_quality() {
  for (int quality = 1; quality <= 100; ++quality)
    for (const bool optimised : {false, true}) {
      JpegOptions options;
      options.quality = quality;
      options.optimised = optimised;
      options.restart = quality % 3;
      check_coefficients(options);
    }
}

void test_four_components() {
  for (const bool ycck : {false, true})
    for (const int restart : {0, 2}) {
      JpegOptions options;
      options.components = 4;
      options.ycck = ycck;
      options.restart = restart;
      check_coefficients(options);
    }
}

std::optional<std::vector<std::uint8_t>> decode(const Bytes& encoded, const DecodeChoice& choice,
                                                bool planes = false) {
  JpegDecoder decoder;
  try {
    const Size size = decoder.open(encoded);
    const Size divided{(size.height + choice.denominator - 1) / choice.denominator,
                       (size.width + choice.denominator - 1) / choice.denominator};
    const Window window{divided.height / 3, divided.width / 4, (divided.height + 1) / 2,
                        (divided.width + 1) / 2};
    std::vector<std::uint8_t> pixels;
    const auto take = [&](const View& view, int channels) {
      for (std::int64_t y = view.window.top; y < view.window.bottom(); ++y) {
        const std::uint8_t* row = view.at(y, view.window.left, channels);
        pixels.insert(pixels.end(), row, row + view.window.width * channels);
      }
    };
    if (!planes) {
      take(decoder.decode(window, 3, choice), 3);
    } else {
      const Planes result = decoder.decode_planes(window, choice);
      for (std::size_t c = 0; c < static_cast<std::size_t>(result.count); ++c) take(result.views[c], 1);
    }
    return pixels;
  } catch (const Error& error) {
    CHECK(error.kind == ErrorKind::decode);
    return std::nullopt;
  }
}

void test_pixels() {
  for (const auto& sampling : {std::pair{1, 1}, {2, 1}, {2, 2}, {1, 2}, {0, 0}})
    for (const int restart : {0, 1, 5})
      for (const int denominator : {1, 2, 4, 8})
        for (const bool progressive : {false, true}) {  // progressive images stay libjpeg's
          JpegOptions options;
          options.width = 203;
          options.height = 150;
          options.horizontal = sampling.first;
          options.vertical = sampling.second;
          options.restart = restart;
          options.progressive = progressive;
          const Bytes encoded = make_jpeg(options);
          for (const bool by_segments : {false, true}) {
            const DecodeChoice theirs{denominator, by_segments, true}, ours{denominator, by_segments, false};
            CHECK(decode(encoded, ours) && decode(encoded, ours) == decode(encoded, theirs));
          }
        }
}

// Bytes changed, taken out or doubled: whatever libjpeg alone makes of it.
void test_damage() {
  Random random(9);
  int sound = 0;
  for (int i = 0; i < 3000; ++i) {
    JpegOptions options;
    options.width = 90;
    options.restart = i % 4;
    options.optimised = i % 2 == 0;
    options.horizontal = i % 5;  // 0 is gray
    options.vertical = 1 + i % 2;
    if (options.horizontal == 3) options.horizontal = 1;
    Bytes bad = make_jpeg(options);
    for (std::int64_t k = random.below(3); k >= 0; --k) {
      const auto at = static_cast<std::ptrdiff_t>(random.below(static_cast<unsigned>(bad.size())));
      const std::int64_t kind = random.below(4);
      if (kind == 0) bad.erase(bad.begin() + at);
      if (kind == 1) bad.insert(bad.begin() + at, bad[static_cast<std::size_t>(at)]);
      if (kind >= 2) bad[static_cast<std::size_t>(at)] = static_cast<std::byte>(random.below(256));
    }
    for (const bool by_segments : {false, true}) {
      const auto ours = decode(bad, {.by_segments = by_segments});
      CHECK(ours == decode(bad, {.by_segments = by_segments, .by_libjpeg = true}));
      sound += ours.has_value();
    }
  }
  CHECK(sound > 100);  // otherwise it proves little
}

void test_truncated() {
  JpegOptions options;
  options.restart = 3;
  const Bytes good = make_jpeg(options);
  for (std::size_t size = 0; size < good.size(); size += 3) {
    const Bytes cut(good.begin(), good.begin() + static_cast<std::ptrdiff_t>(size));
    CHECK(decode(cut, {}) == decode(cut, {.by_libjpeg = true}));
    CHECK(decode(cut, {}, true) == decode(cut, {.by_libjpeg = true}, true));
  }
}

// The table of Annex K of the JPEG standard for the first coefficients of luma, and what is no table.
void test_tables() {
  JHUFF_TBL table{};
  const int counts[] = {0, 0, 1, 5, 1, 1, 1, 1, 1, 1};
  std::copy(std::begin(counts), std::end(counts), table.bits);
  for (int i = 0; i < 12; ++i) table.huffval[i] = static_cast<UINT8>(i);
  HuffmanTable built;
  CHECK(built.build(table, true));
  CHECK(built.find(0).bits() == 2 && built.find(0).mask() == 0);
  CHECK(built.find(std::uint64_t{0b11110} << 59).bits() == 5 + 7);
  CHECK(built.find(std::uint64_t{0b111111110} << 55).bits() == 9 + 11);
  CHECK(built.find(~std::uint64_t{0}).run() == HuffmanSymbol::long_code);
  CHECK(built.find_long(~std::uint64_t{0}).run() == HuffmanSymbol::no_code);
  table.huffval[11] = 12;  // 12 bits are too many for images of 8
  CHECK(!built.build(table, true) && !built.build(table, false));
  table.huffval[11] = 11;
  table.bits[1] = 3;  // more codes of one bit than there are
  CHECK(!built.build(table, false) && !built.build(table, false));
  std::fill(table.bits + 1, table.bits + 17, UINT8{0});
  table.bits[16] = 200;
  CHECK(built.build(table, false));
  CHECK(built.find(0).run() == HuffmanSymbol::long_code);
  CHECK(built.find_long(std::uint64_t{5} << 48).bits() == 16 + 5);
  CHECK(built.find_long(std::uint64_t{200} << 48).run() == HuffmanSymbol::no_code);
}

}  // namespace

int main() {
  test_tables();
  test_coefficients();
  test_every_quality();
  test_four_components();
  test_pixels();
  test_damage();
  test_truncated();
  return test::finish("image_huffman");
}

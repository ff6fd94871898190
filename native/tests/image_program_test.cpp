// Programs: every instruction set gives the same bits, geometry is exact, errors are errors.
#include <cmath>
#include <cstring>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "check.h"
#include "core/crc32c.h"
#include "core/error.h"
#include "image/geometry.h"
#include "image/netpbm.h"
#include "image/program.h"
#include "image/resize.h"
#include "image/simd.h"
#include "image_fixtures.h"

namespace {

using namespace fastload;
using namespace fastload::image;
using namespace fastload::image::fixtures;

std::vector<std::byte> run(const std::vector<OpSpec>& ops, int channels, std::span<const std::byte> encoded,
                           const SampleKey& key = {}, const FallbackDecoder& fallback = {}) {
  const auto program = Program::compile(ops, channels, 3);
  const auto scratch = Scratch::make();
  const Size size = program->output_size(encoded, key, *scratch, fallback);
  const std::size_t bytes = program->element_type() == ElementType::uint8     ? 1
                            : program->element_type() == ElementType::float32 ? 4
                                                                              : 2;
  std::vector<std::byte> output(static_cast<std::size_t>(size.height * size.width * program->channels()) *
                                bytes);
  program->run(encoded, key, *scratch, fallback, output);
  return output;
}

// Of all outputs of a test, in order: the same on every machine. They change when the arithmetic of
// docs/images.md does, or what the tests draw.
constexpr std::uint32_t kPixelDigest = 0x11CA770B, kGeometryDigest = 0xBFB9C935;

// A made-up image in place of a codec: its encoding is "RAW", height and width.
Pixels decode_raw(std::span<const std::byte> encoded, int channels) {
  Pixels pixels;
  pixels.channels = channels;
  pixels.size = {static_cast<int>(encoded[3]), static_cast<int>(encoded[4])};
  pixels.data = make_pixels(static_cast<int>(encoded[3]), static_cast<int>(encoded[4]), channels, 9);
  return pixels;
}

std::vector<std::byte> raw(int height, int width) {
  return {std::byte{'R'}, std::byte{'A'}, std::byte{'W'}, static_cast<std::byte>(height),
          static_cast<std::byte>(width)};
}

// Continues `digest` over what plain code makes of it.
void check_same_bits(const std::vector<OpSpec>& ops, int channels, std::span<const std::byte> encoded,
                     const SampleKey& key, std::uint32_t& digest) {
  force_simd(Simd::plain);
  const auto plain = run(ops, channels, encoded, key, decode_raw);
  digest = crc32c(plain, digest);
  for (const Simd set : available_simd()) {
    force_simd(set);
    CHECK(run(ops, channels, encoded, key, decode_raw) == plain);
  }
}

OpSpec any_pixel_op(Random& random, int channels) {
  const auto upto = [&](unsigned most) { return static_cast<double>(random.below(most + 1)); };
  switch (random.below(14)) {
    case 0:
      return {"pad", {upto(9), upto(9), upto(9), upto(9), 1, upto(255)}};
    case 1:
      return {"random_crop",
              {1 + upto(70), 1 + upto(70), upto(9), upto(9), upto(9), upto(9), 1, 1, upto(255)}};
    case 2:
      return {"random_vertical_flip", {0.5}};
    case 3:
      return {"random_grayscale", {0.7}};
    case 4:
      return {"random_invert", {0.7}};
    case 5:
      return {"random_solarize", {upto(255), 0.7}};
    case 6:
      return {"random_posterize", {upto(8), 0.7}};
    case 7:
      return {"random_adjust_sharpness", {upto(30) / 10, 0.7}};
    case 8:
      return {random.below(2) ? "random_autocontrast" : "random_equalize", {0.7}};
    case 9:
      return {"color_jitter", {0.2, 1.8, 0.2, 1.8, 0, 3, -0.5, 0.5}};
    case 10:
      return {"gaussian_blur", {1 + 2 * upto(20), 1 + 2 * upto(20), 0.1, 9}};
    case 11:
      return {"random_erasing", {0.8, 0, 0.9, -2, 2, 0}};
    case 12:
      return {"rand_augment", {2, upto(9), 10, static_cast<double>(channels), 1, 2, 3}};
    default:
      return {"trivial_augment_wide", {31, 0}};
  }
}

void test_pixel_operations() {
  Random random(6);
  std::uint32_t digest = 0;
  for (int round = 0; round < 400; ++round) {
    const int channels = random.below(4) == 0 ? 1 : 3;
    std::vector<OpSpec> ops;
    for (auto count = random.below(5); count >= 0; --count) {
      ops.push_back(any_pixel_op(random, channels));
      if (ops.back().name == "rand_augment")
        ops.back().numbers.resize(static_cast<std::size_t>(4 + channels));
    }
    int made = channels;
    if (random.below(4) == 0) {
      made = random.below(2) ? 1 : 3;
      ops.push_back({"grayscale", {static_cast<double>(made)}});
    }
    if (random.below(2)) {
      ops.push_back({"to_dtype", {static_cast<double>(1 + random.below(3)), 1}});
      ops.push_back({"random_erasing", {0.8, 0.1, 0.9, -1, 1, static_cast<double>(random.below(2))}});
      if (ops.back().numbers.back() != 0) ops.back().numbers.push_back(0.25);
    }
    ops.push_back({"layout", {static_cast<double>(random.below(3))}});
    CHECK(Program::compile(ops, channels, 0)->channels() == made);
    const auto height = static_cast<int>(1 + random.below(90)),
               width = static_cast<int>(1 + random.below(90));
    const SampleKey key{random.next(), 1, random.next()};
    check_same_bits(ops, channels, raw(height, width), key, digest);
  }
  CHECK(digest == kPixelDigest);
}

void test_instruction_sets_agree() {
  Random random(4);
  std::uint32_t digest = 0;
  for (int round = 0; round < 400; ++round) {
    const auto side = [&](unsigned most) { return static_cast<double>(1 + random.below(most)); };
    std::vector<OpSpec> ops;
    const double interpolation = static_cast<double>(random.below(4));
    if (random.below(2)) ops.push_back({"random_horizontal_flip", {0.5}});
    if (random.below(2)) ops.push_back({"resize", {1, side(90), side(90), 0, interpolation, 1}});
    if (random.below(3) == 0) ops.push_back({"center_crop", {side(120), side(120)}});
    if (random.below(2))
      ops.push_back({"random_resized_crop", {side(70), side(70), 0.05, 1, -0.7, 0.7, 1, 1}});
    if (random.below(2)) ops.push_back({"random_horizontal_flip", {0.5}});
    if (random.below(3) == 0)
      ops.push_back({"resize", {0, side(40), 0, 0, 1, static_cast<double>(random.below(2))}});
    if (random.below(2)) {
      ops.push_back({"to_dtype", {static_cast<double>(1 + random.below(3)), 1}});
      if (random.below(2)) ops.push_back({"normalize", {1, 0.45, 0.22}});
    }
    ops.push_back({"layout", {static_cast<double>(random.below(3))}});
    const auto height = static_cast<int>(1 + random.below(200)),
               width = static_cast<int>(1 + random.below(200));
    const int channels = random.below(4) == 0 ? 1 : 3;
    const SampleKey key{random.next(), 1, random.next()};
    check_same_bits(ops, channels, raw(height, width), key, digest);
  }
  CHECK(digest == kGeometryDigest);
}

void test_weights_sum_up() {
  for (const auto& [source, target] :
       {std::pair{300, 224}, {7, 224}, {224, 7}, {1, 5}, {2000, 224}, {5, 1}}) {
    for (const bool antialias : {true, false}) {
      Axis axis;
      axis.compute(source, target, 0, target, Interpolation::bilinear, antialias);
      axis.round_fast();
      for (int i = 0; i < target; ++i) {
        int sum = 0;
        for (int k = 0; k < axis.taps; ++k) {
          CHECK(axis.weights.data()[i * axis.taps + k] >= 0);
          sum += axis.weights.data()[i * axis.taps + k];
        }
        CHECK(sum == 16384);
      }
    }
  }
}

void test_fusion() {
  std::vector<Pass> passes;
  const auto count = [&](const std::vector<OpSpec>& specs) {
    std::vector<GeometryOp> ops;
    for (std::uint32_t i = 0; i < specs.size(); ++i) ops.push_back(parse_geometry(specs[i], i, 3));
    resolve(ops, {100, 200}, {}, 0, passes);
    return passes.size();
  };
  const OpSpec crop{"random_resized_crop", {32, 32, 0.08, 1, -0.3, 0.3, 1, 1}},
      flip{"random_horizontal_flip", {1}};
  const OpSpec resize{"resize", {0, 50, 0, 0, 1, 1}}, center{"center_crop", {40, 40}};
  CHECK(count({}) == 1 && passes[0].output == (Window{0, 0, 100, 200}) && !passes[0].resizes);
  CHECK(count({crop, flip}) == 1 && passes[0].flipped && passes[0].resizes);
  CHECK(count({resize, center}) == 1 && passes[0].output == (Window{5, 30, 40, 40}));
  CHECK(count({center, resize, flip, flip, center}) == 1 && passes[0].source == (Window{30, 80, 40, 40}));
  CHECK(count({resize, crop}) == 2);  // two resizes
  CHECK(count({flip, crop}) == 2);    // filters are not symmetric to the last bit
  CHECK(count({{"center_crop", {300, 300}}, {"center_crop", {20, 20}}}) == 1);
  const OpSpec pad{"pad", {1, 2, 3, 4, 1, 7}}, vertical{"random_vertical_flip", {1}};
  CHECK(count({pad, flip, vertical}) == 1 && passes[0].output == (Window{-2, -1, 106, 204}));
  CHECK(passes[0].flipped && passes[0].flipped_rows && passes[0].fill[2] == 7);
  CHECK(count({pad, {"pad", {1, 1, 1, 1, 1, 8}}}) == 2);
  CHECK(count({vertical, resize}) == 2);
  // What a cut took away must not come back.
  CHECK(count({{"center_crop", {20, 20}}, {"center_crop", {60, 60}}}) == 2);
}

void test_padding_is_zero() {
  const auto output = run({{"center_crop", {5, 6}}, {"layout", {2}}}, 1, raw(3, 2), {}, decode_raw);
  const auto pixels = make_pixels(3, 2, 1, 9);
  for (int y = 0; y < 5; ++y)
    for (int x = 0; x < 6; ++x) {
      const bool is_inside = y >= 1 && y < 4 && x >= 2 && x < 4;
      const int expected = is_inside ? pixels[static_cast<std::size_t>((y - 1) * 2 + x - 2)] : 0;
      CHECK(static_cast<int>(output[static_cast<std::size_t>(y * 6 + x)]) == expected);
    }
}

void test_only_the_needed_part_gives_the_same() {
  // A program on the JPEG (part decoded) and on its pixels (through the fallback).
  JpegOptions options;
  options.height = 150;
  options.width = 210;
  const auto encoded = make_jpeg(options);
  const auto pixels = run({{"layout", {2}}}, 3, encoded);
  const FallbackDecoder whole_image = [&](std::span<const std::byte>, int) {
    const auto* first = reinterpret_cast<const std::uint8_t*>(pixels.data());
    return Pixels{{150, 210}, 3, {first, first + pixels.size()}};
  };
  const std::vector<OpSpec> programs[] = {
      {{"random_resized_crop", {64, 64, 0.08, 1, -0.3, 0.3, 1, 1}}, {"random_horizontal_flip", {0.5}}},
      {{"resize", {0, 80, 0, 0, 1, 1}}, {"center_crop", {60, 70}}, {"to_dtype", {1, 1}}},
      {{"resize", {0, 80, 0, 0, 2, 1}}, {"center_crop", {60, 70}}},
      {{"resize", {0, 5, 0, 0, 1, 1}}},
  };
  for (const auto& ops : programs)
    for (std::uint64_t position = 0; position < 20; ++position)
      CHECK(run(ops, 3, encoded, {1, 2, position}) == run(ops, 3, raw(1, 1), {1, 2, position}, whole_image));
}

std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

// Exactly as long as it is to be, on the heap: a sanitizer sees a byte read past the end.
std::vector<std::byte> netpbm(int height, int width, int channels) {
  const auto pixels = make_pixels(height, width, channels, 9);
  const std::string header = std::string(channels == 1 ? "P5\n" : "P6\n") + std::to_string(width) + " " +
                             std::to_string(height) + "\n255\n";
  std::vector<std::byte> file;
  file.reserve(header.size() + pixels.size());
  for (const std::byte value : bytes_of(header)) file.push_back(value);
  for (const std::uint8_t value : pixels) file.push_back(std::byte{value});
  return file;
}

void test_raw_pixels_are_read_in_place() {
  Random random(11);
  for (int round = 0; round < 300; ++round) {
    const int channels = random.below(4) == 0 ? 1 : 3;
    const auto height = static_cast<int>(1 + random.below(90)),
               width = static_cast<int>(1 + random.below(90));
    const double interpolation = static_cast<double>(random.below(4)), side = 1.0 + random.below(70);
    std::vector<OpSpec> ops;
    if (random.below(2)) ops.push_back({"random_horizontal_flip", {0.5}});
    if (random.below(2)) ops.push_back({"resize", {1, side, 1.0 + random.below(70), 0, interpolation, 1}});
    if (random.below(2)) ops.push_back({"random_resized_crop", {side, side, 0.05, 1, -0.7, 0.7, 1, 1}});
    if (random.below(3) == 0) ops.push_back({"center_crop", {side, 30}});
    if (random.below(2)) ops.push_back({"layout", {static_cast<double>(random.below(3))}});
    const SampleKey key{random.next(), 1, random.next()};
    for (const Simd choice : available_simd()) {
      force_simd(choice);
      CHECK(run(ops, channels, netpbm(height, width, channels), key) ==
            run(ops, channels, raw(height, width), key, decode_raw));
    }
  }
}

void test_which_files_are_raw_pixels() {
  const auto size = [](std::string_view text, int channels = 1) -> Size {
    const auto view = view_netpbm(bytes_of(text), channels);
    return view ? Size{view->window.height, view->window.width} : Size{0, 0};
  };
  const Size none;
  CHECK(size("P5\n2 1\n255\nab") == (Size{1, 2}));
  CHECK(size("P5 2\t1\r\n255 abc") == (Size{1, 2}));
  CHECK(size("P6\n1 2\n255\nabcdef", 3) == (Size{2, 1}));
  CHECK(view_netpbm(bytes_of("P5 2 1 255  b"), 1)->data[0] == ' ');  // one white space, no more
  // For the fallback decoder: other channels, ranges, comments, and what is no image at all.
  for (const auto text : {"P6 1 2 255 abcdef", "P5 2 1 254 ab", "P5 2 1 65535 abcd", "P5\n#x\n2 1 255 ab",
                          "P5 0 1 255 ab", "P5 -2 1 255 ab", "P52 1 255 ab", "P5 2 1 255", "P5 2 1 2550 ab",
                          "P5 0000000002 1 255 ab", "P5 9999999999 1 255 ab", "P5", "P", "", "P4 2 1 255 ab"})
    CHECK(size(text) == none);
  CHECK_THROWS(ErrorKind::decode, size("P5 2 1 255 a"));
  CHECK_THROWS(ErrorKind::decode, size("P6 1 2 255 abcde", 3));
  CHECK_THROWS(ErrorKind::decode, size("P5 999999999 999999999 255 ab"));
  CHECK_THROWS(ErrorKind::decode, size("P5 178956970 1 255 ab"));
  CHECK_THROWS(ErrorKind::decode, size("P5 178956971 1 255 ab"));
}

void test_errors() {
  const auto compile = [](std::vector<OpSpec> ops, int channels = 3) {
    return Program::compile(ops, channels, 0);
  };
  CHECK_THROWS(ErrorKind::usage, compile({{"swirl", {}}}));
  CHECK_THROWS(ErrorKind::usage, compile({}, 2));
  CHECK_THROWS(ErrorKind::usage, compile({{"to_dtype", {3, 1}}, {"resize", {0, 9, 0, 0, 1, 1}}}));
  CHECK_THROWS(ErrorKind::usage, compile({{"normalize", {1, 0.5, 0.5}}}));
  CHECK_THROWS(ErrorKind::usage, compile({{"to_dtype", {3, 1}}, {"normalize", {2, 0.5, 0.5, 1, 1}}}));
  CHECK_THROWS(ErrorKind::usage, compile({{"to_dtype", {3, 1}}, {"normalize", {1, 0.5, 0}}}));
  CHECK_THROWS(ErrorKind::usage, compile({{"to_dtype", {3, 1}}, {"normalize", {NAN, 0.5, 0}}}));
  CHECK_THROWS(ErrorKind::usage, compile({{"to_dtype", {4, 1}}}));
  CHECK_THROWS(ErrorKind::usage, compile({{"to_dtype", {NAN, 1}}}));
  CHECK_THROWS(ErrorKind::usage, compile({{"to_dtype", {3, 1}}, {"to_dtype", {0, 1}}}));
  CHECK_THROWS(ErrorKind::usage, compile({{"layout", {3}}}));
  CHECK_THROWS(ErrorKind::usage, compile({{"resize", {0, 0, 0, 0, 1, 1}}}));
  CHECK_THROWS(ErrorKind::usage, compile({{"resize", {1, 5, 1e9, 0, 1, 1}}}));
  CHECK_THROWS(ErrorKind::usage, compile({{"resize", {1, 5, 5, 0, 2, 0}}}));
  CHECK_THROWS(ErrorKind::usage, compile({{"random_horizontal_flip", {1.5}}}));
  CHECK_THROWS(ErrorKind::usage, compile({{"center_crop", {2.5, 2}}}));
  CHECK_THROWS(ErrorKind::usage, compile({{"random_resized_crop", {9, 9, 0, 1, 0, 0, 1, 1}}}));
  CHECK_THROWS(ErrorKind::usage, compile({{"to_dtype", {3, 1}}, {"random_invert", {1}}}));
  CHECK_THROWS(ErrorKind::usage, compile({{"pad", {1, 1, 1, 1, 3, 0, 0}}}));
  CHECK_THROWS(ErrorKind::usage, compile({{"pad", {1, 1, 1, 1, 1, 256}}}));
  CHECK_THROWS(ErrorKind::usage, compile({{"pad", {1, 1, 1, 1, 3, 0, 0, 0}}}, 1));
  CHECK_THROWS(ErrorKind::usage, compile({{"pad", {-1, 1, 1, 1, 1, 0}}}));
  CHECK_THROWS(ErrorKind::usage, compile({{"random_crop", {9, 9, 0, 0, 0, 0, 2, 1, 0}}}));
  CHECK_THROWS(ErrorKind::usage, compile({{"gaussian_blur", {4, 3, 1, 1}}}));
  CHECK_THROWS(ErrorKind::usage, compile({{"gaussian_blur", {257, 3, 1, 1}}}));
  CHECK_THROWS(ErrorKind::usage, compile({{"gaussian_blur", {3, 3, 0, 1}}}));
  CHECK_THROWS(ErrorKind::usage, compile({{"color_jitter", {1, 1, 1, 1, 1, 1, -0.6, 0}}}));
  CHECK_THROWS(ErrorKind::usage, compile({{"color_jitter", {1, NAN, 1, 1, 1, 1, 0, 0}}}));
  CHECK_THROWS(ErrorKind::usage, compile({{"random_posterize", {9, 1}}}));
  CHECK_THROWS(ErrorKind::usage, compile({{"grayscale", {2}}}));
  CHECK_THROWS(ErrorKind::usage, compile({{"rand_augment", {1, 10, 10, 0}}}));
  CHECK_THROWS(ErrorKind::usage, compile({{"trivial_augment_wide", {1, 0}}}));
  CHECK_THROWS(ErrorKind::usage, compile({{"random_erasing", {1, 0, 1, 0, 0, 1}}}));
  CHECK_THROWS(ErrorKind::decode, run({{"pad", {9e4, 9e4, 9e4, 9e4, 1, 0}}}, 3, raw(1, 1), {}, decode_raw));
  CHECK_THROWS(ErrorKind::decode,
               run({{"random_crop", {9, 9, 0, 0, 0, 0, 0, 1, 0}}}, 3, raw(9, 8), {}, decode_raw));
  CHECK_THROWS(ErrorKind::decode, run({}, 3, {}));
  CHECK_THROWS(ErrorKind::decode, run({}, 3, raw(3, 3)));
  CHECK_THROWS(ErrorKind::decode, run({}, 3, raw(0, 3), {}, decode_raw));
  // An image so narrow that its long side would take gigabytes.
  CHECK_THROWS(ErrorKind::decode, run({{"resize", {0, 1000, 0, 0, 1, 1}}}, 3, raw(1, 200), {}, decode_raw));
  const auto program = compile({{"center_crop", {9, 9}}});
  const auto scratch = Scratch::make();
  std::vector<std::byte> small(9 * 9 * 3 - 1);
  CHECK_THROWS(ErrorKind::usage, program->run(raw(3, 3), {}, *scratch, decode_raw, small));
}

void test_threads_share_a_program() {
  const auto encoded = make_jpeg({.width = 90, .height = 70});
  const std::vector<OpSpec> ops = {{"random_resized_crop", {32, 32, 0.08, 1, -0.3, 0.3, 1, 1}},
                                   {"to_dtype", {1, 1}}};
  const auto program = Program::compile(ops, 3, 0);
  std::vector<std::vector<std::byte>> outputs(4, std::vector<std::byte>(32 * 32 * 3 * 2));
  std::vector<std::thread> threads;
  for (auto& output : outputs)
    threads.emplace_back([&] {
      const auto scratch = Scratch::make();
      for (std::uint64_t position = 0; position < 50; ++position)
        program->run(encoded, {1, 1, position}, *scratch, {}, output);
    });
  for (auto& thread : threads) thread.join();
  for (const auto& output : outputs) CHECK(output == outputs[0]);
}

void test_fixed_size() {
  CHECK(!Program::compile(std::vector<OpSpec>{}, 3, 0)->fixed_size());
  CHECK(!Program::compile(std::vector<OpSpec>{{"resize", {0, 256, 0, 0, 1, 1}}}, 3, 0)->fixed_size());
  CHECK(!Program::compile(std::vector<OpSpec>{{"resize", {0, 5000, 0, 0, 1, 1}}}, 3, 0)->fixed_size());
  const std::vector<OpSpec> ops = {{"resize", {0, 256, 0, 0, 1, 1}}, {"center_crop", {224, 200}}};
  CHECK(Program::compile(ops, 3, 0)->fixed_size() == (Size{224, 200}));
}

}  // namespace

int main() {
  test_instruction_sets_agree();
  test_pixel_operations();
  test_weights_sum_up();
  test_fusion();
  test_padding_is_zero();
  test_only_the_needed_part_gives_the_same();
  test_raw_pixels_are_read_in_place();
  test_which_files_are_raw_pixels();
  test_errors();
  test_fixed_size();
  test_threads_share_a_program();
  return test::finish("image_program");
}

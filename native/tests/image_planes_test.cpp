// decode="fast": planes resized before colour conversion give the same pixels whatever is decoded of the
// image and on every instruction set, near those of exact decoding.
#include <algorithm>
#include <cstdlib>
#include <vector>

#include "check.h"
#include "image/geometry.h"
#include "image/plane_kernels.h"
#include "image/planes.h"
#include "image/program.h"
#include "image/reduce.h"
#include "image/simd.h"
#include "image_fixtures.h"

namespace {

using namespace fastload::image;
using namespace fastload::image::fixtures;
using Bytes = std::vector<std::byte>;

const int kSamplings[][2] = {{1, 1}, {2, 1}, {2, 2}, {1, 2}, {4, 1}, {1, 4}, {4, 2}, {3, 1}, {0, 0}};

Bytes run(const Bytes& encoded, std::vector<OpSpec> ops, bool fast, std::uint64_t position) {
  ops.insert(ops.begin(), {"decode", {fast ? 1.0 : 0.0}});
  const auto program = Program::compile(ops, 3, 0);
  const auto scratch = Scratch::make();
  const SampleKey key{1, 2, position};
  const Size size = program->output_size(encoded, key, *scratch, {});
  Bytes output(static_cast<std::size_t>(3 * size.height * size.width));
  program->run(encoded, key, *scratch, {}, output);
  return output;
}

Bytes make_image(const int (&sampling)[2], int height, int width, int restart, bool progressive = false) {
  JpegOptions options;
  options.horizontal = sampling[0];
  options.vertical = sampling[1];
  options.height = height;
  options.width = width;
  options.restart = restart;
  options.progressive = progressive;
  return make_jpeg(options);
}

// The rest of a program that crops to `height` x `width`.
std::vector<OpSpec> crop(double height, double width, double layout) {
  return {
      {"random_resized_crop", {height, width, 0.08, 1.0, -0.28768208622932434, 0.28768208622932434, 1, 1}},
      {"random_horizontal_flip", {0.5}},
      {"random_vertical_flip", {0.5}},
      {"layout", {layout}}};
}

void test_same_pixels() {
  for (const auto& sampling : kSamplings)
    for (const auto& size : {std::pair{133, 251}, {64, 64}, {9, 300}, {3, 2}, {1, 1}}) {
      const Bytes plain = make_image(sampling, size.first, size.second, 0);
      const Bytes segmented = make_image(sampling, size.first, size.second, 1);
      const Bytes progressive = make_image(sampling, size.first, size.second, 0, true);
      for (const int side : {5, 40, 61})
        for (std::uint64_t position = 0; position < 6; ++position) {
          const auto ops = crop(side, side + 7, position % 2 == 0 ? 0 : 2);
          const Bytes expected = run(plain, ops, true, position);
          CHECK(run(segmented, ops, true, position) == expected);
          CHECK(run(progressive, ops, true, position) == expected);
          for (const Simd simd : available_simd()) {
            force_simd(simd);
            CHECK(run(plain, ops, true, position) == expected);
          }
        }
    }
}

// Up to and past the most that planes are narrowed by, mirrored too.
void test_narrowing() {
  const Bytes image = make_image(kSamplings[1], 133, 251, 0);
  for (double width = 85; width < 130; ++width)
    for (const double mirrored : {0.0, 1.0}) {
      const std::vector<OpSpec> ops = {{"resize", {1, 120, width, 0, 1, 1}},
                                       {"random_horizontal_flip", {mirrored}}};
      force_simd(Simd::plain);
      const Bytes expected = run(image, ops, true, 0);
      for (const Simd simd : available_simd()) {
        force_simd(simd);
        CHECK(run(image, ops, true, 0) == expected);
      }
    }
}

void test_padding_and_passes() {
  const Bytes image = make_image(kSamplings[2], 110, 150, 2);
  const std::vector<std::vector<OpSpec>> programs = {
      {{"resize", {1, 60, 80, 0, 1, 1}}, {"center_crop", {70, 90}}},  // padding on every side
      {{"resize", {1, 60, 80, 0, 1, 1}}, {"center_crop", {31, 90}}, {"layout", {2}}},
      {{"resize", {1, 90, 150, 0, 1, 1}}, {"resize", {1, 60, 80, 0, 1, 1}}},
      {{"resize", {1, 90, 150, 0, 1, 0}}, {"random_invert", {1.0}}},
  };
  for (const auto& ops : programs) {
    const Bytes fast = run(image, ops, true, 0), exact = run(image, ops, false, 0);
    CHECK(fast.size() == exact.size());
    double error = 0;
    for (std::size_t i = 0; i < fast.size(); ++i)
      error += std::abs(std::to_integer<int>(fast[i]) - std::to_integer<int>(exact[i]));
    CHECK(error < 1.0 * static_cast<double>(fast.size()));
  }
}

// Without a division only clipped colours and roundings differ.
void test_near_exact() {
  for (const auto& sampling : kSamplings) {
    const Bytes image = make_image(sampling, 133, 251, 0);
    for (std::uint64_t position = 0; position < 10; ++position) {
      const auto ops = crop(100, 90, 0);  // too large for a division
      const Bytes fast = run(image, ops, true, position), exact = run(image, ops, false, position);
      double error = 0;
      for (std::size_t i = 0; i < fast.size(); ++i)
        error += std::abs(std::to_integer<int>(fast[i]) - std::to_integer<int>(exact[i]));
      CHECK(error < 1.0 * static_cast<double>(fast.size()));
    }
  }
}

Axis axis_of(std::int64_t source, std::int64_t target) {
  Axis axis;
  axis.compute(source, target, 0, target, Interpolation::bilinear, true);
  return axis;
}

// Folded weights applied to samples are the pixels' weights applied to upsampled ones.
void test_folding() {
  Random random(5);
  for (const int ratio : {1, 2, 3, 4})
    for (const bool interpolated : {false, true})
      for (const auto& sides : {std::pair{40, 17}, {41, 64}, {5, 9}, {1, 3}}) {
        const std::int64_t origin = 6, samples = (origin + sides.first + ratio - 1) / ratio;
        std::vector<double> values;
        for (std::int64_t i = 0; i < samples; ++i) values.push_back(static_cast<double>(random.below(256)));
        std::vector<double> pixels;
        for (std::int64_t i = origin; i < origin + sides.first; ++i) {
          const std::int64_t near = i / ratio,
                             next = std::clamp<std::int64_t>(near + (i % 2 ? 1 : -1), 0, samples - 1);
          const double a = values[static_cast<std::size_t>(near)], b = values[static_cast<std::size_t>(next)];
          pixels.push_back(interpolated && ratio == 2 ? 0.75 * a + 0.25 * b : a);
        }
        const Axis axis = axis_of(sides.first, sides.second);
        Axis folded;
        fold(axis, origin, ratio, interpolated, samples, folded);
        CHECK(folded.low >= 0 && folded.high <= samples && folded.count == sides.second);
        for (std::int64_t i = 0; i < axis.count; ++i) {
          double expected = 0, found = 0;
          for (std::int64_t t = 0; t < axis.taps && axis.first.data()[i] + t < sides.first; ++t)
            expected += axis.exact.data()[i * axis.taps + t] *
                        pixels[static_cast<std::size_t>(axis.first.data()[i] + t)];
          for (std::int64_t t = 0; t < folded.taps && folded.first.data()[i] + t < samples; ++t)
            found += folded.exact.data()[i * folded.taps + t] *
                     values[static_cast<std::size_t>(folded.first.data()[i] + t)];
          CHECK(std::abs(expected - found) < 1e-9);
        }
      }
}

Sampling sampling_of(int horizontal, int vertical) { return {3, {horizontal, 1, 1, 0}, {vertical, 1, 1, 0}}; }

int denominator(int horizontal, int vertical, std::int64_t height, std::int64_t width) {
  Pass pass;
  pass.source = {0, 0, height, width};
  pass.resizes = true;
  pass.resized = {100, 100};
  return denominator_of(pass, sampling_of(horizontal, vertical));
}

void test_denominators() {
  CHECK(denominator(1, 1, 199, 400) == 1);
  CHECK(denominator(1, 1, 200, 400) == 2);
  CHECK(denominator(2, 2, 200, 200) == 2);
  CHECK(denominator(2, 2, 800, 799) == 4);
  CHECK(denominator(2, 2, 900, 800) == 8);
  // Chroma that is narrower than luma where both are divided must be wide enough itself.
  CHECK(denominator(2, 1, 400, 399) == 1);
  CHECK(denominator(2, 1, 200, 400) == 2);
  CHECK(denominator(1, 2, 400, 200) == 2);
  CHECK(denominator(1, 2, 399, 400) == 1);
  const PlaneGrid luma = plane_grid(sampling_of(2, 2), 0, {101, 203}, 2),
                  chroma = plane_grid(sampling_of(2, 2), 1, {101, 203}, 2);
  CHECK(luma.block == 4 && chroma.block == 8 && chroma.across == 1 && chroma.down == 1);
  CHECK((luma.size == Size{51, 102} && chroma.size == Size{51, 102}));
  CHECK(plane_grid(sampling_of(3, 1), 1, {9, 9}, 1).across == 3);
  CHECK(plane_grid({3, {3, 2, 1, 0}, {1, 1, 1, 0}}, 1, {9, 9}, 1).across == 0);
}

}  // namespace

int main() {
  test_same_pixels();
  test_narrowing();
  test_padding_and_passes();
  test_near_exact();
  test_folding();
  test_denominators();
  return fastload::test::finish("image_planes");
}

// Milliseconds an image of each stage of the image path, on one core:
//   g++ -std=c++20 -O3 -ffp-contract=off -Inative benchmarks/micro_image.cpp native/image/*.cpp -ljpeg -o
//   /tmp/micro_image /tmp/micro_image FILE.jpg...
// Whole images decoded, parts decoded (by skipping scanlines, and by segments of the rewritten images),
// programs in uint8 and float32 (their difference to the parts is resize and output), and the resize and
// output of the same crops alone. Then the same of raw pixels, 256 at most.
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "image/geometry.h"
#include "image/jpeg.h"
#include "image/jpeg_segment.h"
#include "image/planes.h"
#include "image/program.h"
#include "image/resize.h"
#include "image/simd.h"

namespace {

using namespace fastload::image;

std::vector<std::byte> read(const char* path) {
  std::ifstream file(path, std::ios::binary);
  const std::vector<char> text{std::istreambuf_iterator<char>(file), {}};
  const auto* first = reinterpret_cast<const std::byte*>(text.data());
  return {first, first + text.size()};
}

const std::vector<OpSpec> kCrop = {
    {"random_resized_crop", {224, 224, 0.08, 1.0, -0.28768208622932434, 0.28768208622932434, 1, 1}},
    {"random_horizontal_flip", {0.5}}};

std::vector<OpSpec> with(std::vector<OpSpec> more) {
  std::vector<OpSpec> ops = kCrop;
  ops.insert(ops.end(), more.begin(), more.end());
  return ops;
}

template <typename Work>
void measure(const char* name, std::size_t count, Work&& work) {
  double best = 1e9;
  for (int repeat = 0; repeat < 5; ++repeat) {
    const std::clock_t start = std::clock();  // the processor's time: other processes do not count
    for (std::size_t i = 0; i < count; ++i) work(i);
    const double time = 1000.0 * static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC;
    best = std::min(best, time / static_cast<double>(count));
  }
  std::printf("%-44s %.4f ms\n", name, best);
}

void measure_program(const char* name, const std::vector<std::vector<std::byte>>& images,
                     const std::vector<OpSpec>& ops, Scratch& scratch) {
  const auto program = Program::compile(ops, 3, 0);
  std::vector<std::byte> output(224 * 224 * 3 * 4);
  measure(name, images.size(),
          [&](std::size_t i) { program->run(images[i], {0, 0, i}, scratch, {}, output); });
}

// The image as a PPM file, its longer side 256.
std::vector<std::byte> raw_pixels(const std::vector<std::byte>& image, Scratch& scratch) {
  const auto program =
      Program::compile(std::vector<OpSpec>{{"resize", {0, 0, 0, 256, 1, 1}}, {"layout", {2}}}, 3, 0);
  const Size size = program->output_size(image, {}, scratch, {});
  const std::string header =
      "P6\n" + std::to_string(size.width) + " " + std::to_string(size.height) + "\n255\n";
  std::vector<std::byte> file(header.size() + static_cast<std::size_t>(3 * size.height * size.width));
  std::memcpy(file.data(), header.data(), header.size());
  program->run(image, {}, scratch, {}, std::span(file).subspan(header.size()));
  return file;
}

}  // namespace

int main(int argc, char** argv) {
  std::vector<std::vector<std::byte>> images;
  std::vector<Size> sizes;
  std::size_t bytes = 0;
  JpegDecoder decoder;
  for (int i = 1; i < argc; ++i) {
    images.push_back(read(argv[i]));
    bytes += images.back().size();
    sizes.push_back(decoder.open(images.back()));
  }
  if (images.empty()) return 2;
  std::printf("%zu images, %zu bytes each on average\n", images.size(), bytes / images.size());

  std::vector<std::vector<Pass>> passes(images.size());
  std::vector<GeometryOp> ops;
  for (std::uint32_t i = 0; i < kCrop.size(); ++i) ops.push_back(parse_geometry(kCrop[i], i, 3));
  for (std::size_t i = 0; i < images.size(); ++i) resolve(ops, sizes[i], {0, 0, i}, 0, passes[i]);

  measure("header", images.size(), [&](std::size_t i) { decoder.open(images[i]); });
  measure("decode, whole", images.size(), [&](std::size_t i) {
    decoder.open(images[i]);
    decoder.decode(whole(sizes[i]), 3);
  });
  Resizer resizer;
  measure("decode, the part", images.size(), [&](std::size_t i) {
    decoder.open(images[i]);
    decoder.decode(resizer.prepare(passes[i][0], 3), 3);
  });
  std::vector<std::vector<std::byte>> segmented;
  measure("rewriting with segments", images.size(), [&](std::size_t i) {
    segmented.resize(std::max(segmented.size(), i + 1));
    segmented[i] = segment_jpeg(images[i], false).encoded;
    if (segmented[i].empty()) segmented[i] = images[i];
  });
  std::size_t segmented_bytes = 0;
  for (const auto& image : segmented) segmented_bytes += image.size();
  std::printf("rewritten: %zu bytes each on average\n", segmented_bytes / images.size());
  for (const bool by_segments : {false, true}) {
    measure(by_segments ? "rewritten, the part by segments" : "rewritten, the part by scanlines",
            images.size(), [&](std::size_t i) {
              decoder.open(segmented[i]);
              decoder.decode(resizer.prepare(passes[i][0], 3), 3, {.by_segments = by_segments});
            });
  }
  PlaneResizer planes;
  measure("rewritten, its planes", images.size(), [&](std::size_t i) {
    decoder.open(segmented[i]);
    planes.prepare(passes[i][0], decoder.sampling(), sizes[i], 1);
    decoder.decode_planes(planes.part());
  });
  const auto scratch = Scratch::make();
  measure_program("program, uint8 NCHW", images, kCrop, *scratch);
  measure_program("program, uint8 NCHW, segmented", segmented, kCrop, *scratch);
  std::vector<OpSpec> fast = kCrop;
  fast.insert(fast.begin(), {"decode", {1}});
  measure_program("program, uint8 NCHW, segmented, fast", segmented, fast, *scratch);
  const OpSpec normalize{"normalize", {3, 0.485, 0.456, 0.406, 0.229, 0.224, 0.225}};
  measure_program("program, float32 NCHW", images, with({{"to_dtype", {3, 1}}, normalize}), *scratch);
  measure_program("program, float16 NCHW", images, with({{"to_dtype", {1, 1}}, normalize}), *scratch);
  measure_program("program, bfloat16 channels_last", images,
                  with({{"to_dtype", {2, 1}}, normalize, {"layout", {1}}}), *scratch);

  // The same passes over pixels in the cache.
  std::vector<std::uint8_t> row(3 * 256 + 128);
  Size largest;
  for (const Size& size : sizes) {
    largest.height = std::max(largest.height, size.height);
    largest.width = std::max(largest.width, size.width);
  }
  std::vector<std::uint8_t> pixels(static_cast<std::size_t>(largest.height * largest.width * 3 + 128), 77);
  measure("plan of the resize", images.size(), [&](std::size_t i) { resizer.prepare(passes[i][0], 3); });
  for (const Simd choice : available_simd()) {
    force_simd(choice);
    measure(("resize, " + std::string(name_of(choice))).c_str(), images.size(), [&](std::size_t i) {
      resizer.prepare(passes[i][0], 3);
      resizer.begin({pixels.data(), static_cast<std::size_t>(sizes[i].width * 3), whole(sizes[i])});
      for (std::int64_t y = 0; y < 224; ++y) resizer.write_row(y, row.data(), {true, 256});
    });
  }

  std::vector<std::vector<std::byte>> raw;
  for (const auto& image : images) raw.push_back(raw_pixels(image, *scratch));
  measure_program("raw pixels, uint8 NCHW", raw, kCrop, *scratch);
  measure_program("raw pixels, float32 NCHW", raw, with({{"to_dtype", {3, 1}}, normalize}), *scratch);
}

// An encoded image, sound or not, through every kind of program. The last bytes choose the program, the key
// and the instruction set. Nothing but Error may come out.
//   cmake -B build/fuzz -DFASTLOAD_FUZZ=ON -DFASTLOAD_SANITIZE=address,undefined -DCMAKE_CXX_COMPILER=clang++
//   build/fuzz/jpeg_fuzz -max_len=20000 CORPUS
// It makes its own seeds: CORPUS may be empty.
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "core/error.h"
#include "fuzz/jpeg_inputs.h"
#include "image/program.h"
#include "image/simd.h"

namespace {

using namespace fastload;
using namespace fastload::image;

const std::vector<std::vector<OpSpec>> kPrograms = {
    {},
    {{"random_resized_crop", {40, 33, 0.08, 1.0, -0.28768208, 0.28768208, 1, 1}},
     {"random_horizontal_flip", {0.5}}},
    {{"resize", {0, 32, 0, 70, 1, 1}}, {"center_crop", {24, 40}}, {"to_dtype", {3, 1}}, {"layout", {2}}},
    {{"random_horizontal_flip", {0.5}},
     {"resize", {1, 20, 50, 0, 2, 1}},
     {"center_crop", {30, 30}},
     {"to_dtype", {1, 1}},
     {"normalize", {1, 0.5, 0.2}}},
    {{"random_resized_crop", {9, 120, 0.01, 0.2, -2, 2, 3, 1}}, {"to_dtype", {2, 0}}, {"layout", {1}}},
    {{"center_crop", {17, 90}}, {"resize", {0, 11, 0, 0, 0, 1}}, {"resize", {1, 64, 64, 0, 1, 0}}},
    {{"decode", {1}}, {"random_resized_crop", {20, 33, 0.08, 1.0, -0.28768208, 0.28768208, 1, 1}}},
    {{"decode", {1}}, {"resize", {0, 6, 0, 0, 1, 1}}, {"center_crop", {9, 20}}, {"layout", {2}}},
};

Pixels decode_other(std::span<const std::byte> encoded, int channels) {
  Pixels pixels;
  pixels.channels = channels;
  const auto byte = [&](std::size_t i) { return i < encoded.size() ? static_cast<int>(encoded[i]) : 0; };
  pixels.size = {byte(0), byte(1)};
  pixels.data.resize(static_cast<std::size_t>(byte(0) * byte(1) * channels + (byte(2) == 7)), 5);
  return pixels;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static fuzz::Reached reached({"images", "with headers", "decoded"});
  const auto input = fuzz::split(data, size);
  if (!input) return 0;
  const auto& [encoded, choices] = *input;
  reached.count(0);
  const auto& ops = kPrograms[choices[0] % kPrograms.size()];
  const int channels = choices[1] % 2 == 0 ? 3 : 1;
  const auto sets = available_simd();
  force_simd(sets[choices[1] / 2 % sets.size()]);
  const SampleKey key{choices[2], 0, choices[3]};
  static const auto scratch = Scratch::make();
  try {
    const auto program = Program::compile(ops, channels, 0);
    const Size out = program->output_size(encoded, key, *scratch, decode_other);
    reached.count(1);
    const auto elements = static_cast<std::size_t>(out.height * out.width * channels);
    if (elements > (std::size_t{1} << 26)) return 0;  // within the limits, but slow to fuzz
    const std::size_t bytes = program->element_type() == ElementType::uint8     ? 1
                              : program->element_type() == ElementType::float32 ? 4
                                                                                : 2;
    std::vector<std::byte> output(elements * bytes);
    program->run(encoded, key, *scratch, decode_other, output);
    reached.count(2);
  } catch (const Error&) {
  }
  return 0;
}

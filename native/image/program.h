// Image programs: decode, crop, resize, flip, convert, fused. A program is compiled once and run by any
// number of threads, each with its own Scratch. fastload/transforms holds the reference of every operation.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/error.h"

namespace fastload::image {

// One operation, as fastload/transforms writes it: a name and numbers (docs/images.md has the table).
struct OpSpec {
  std::string name;
  std::vector<double> numbers;
};

enum class ElementType { uint8, float16, bfloat16, float32 };
enum class Layout { nchw, channels_last, nhwc };

struct Size {
  std::int64_t height = 0;
  std::int64_t width = 0;
  bool operator==(const Size&) const = default;
};

// What identifies a sample's draws.
struct SampleKey {
  std::uint64_t seed = 0;
  std::uint32_t epoch = 0;
  std::uint64_t position = 0;
};

// Interleaved uint8 pixels, rows without padding.
struct Pixels {
  Size size;
  int channels = 3;
  std::vector<std::uint8_t> data;
};

// Decodes what native code has no codec for (PNG, WebP, ...). Throws Error (decode).
using FallbackDecoder = std::function<Pixels(std::span<const std::byte> encoded, int channels)>;

class Scratch {  // decompressor and buffers of one thread
 public:
  static std::unique_ptr<Scratch> make();
  virtual ~Scratch() = default;
};

class Program {
 public:
  // `channels` is 3 or 1 (mode "L"). `group` numbers the transform group for the draws. Throws Error (usage)
  // for an operation, or an order of operations, that native code does not know.
  static std::shared_ptr<const Program> compile(std::span<const OpSpec> ops, int channels,
                                                std::uint32_t group);
  virtual ~Program() = default;

  virtual ElementType element_type() const = 0;
  virtual Layout layout() const = 0;
  virtual int channels() const = 0;
  // The output size where it does not depend on the input.
  virtual std::optional<Size> fixed_size() const = 0;
  // The output size for an encoded image (reads its header, or decodes it where native code has no codec).
  virtual Size output_size(std::span<const std::byte> encoded, const SampleKey& key, Scratch& scratch,
                           const FallbackDecoder& fallback) const = 0;
  // Decodes and transforms into `output`, which has room for output_size() elements in layout(): CHW for
  // nchw, HWC for channels_last and nhwc. Returns the size of the encoded image. Throws Error (decode) for
  // damaged images.
  virtual Size run(std::span<const std::byte> encoded, const SampleKey& key, Scratch& scratch,
                   const FallbackDecoder& fallback, std::span<std::byte> output) const = 0;
};

}  // namespace fastload::image

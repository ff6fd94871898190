#include "image/program.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <utility>

#include "image/geometry.h"
#include "image/jpeg.h"
#include "image/kernels.h"
#include "image/netpbm.h"
#include "image/resize.h"

namespace fastload::image {
namespace {

std::size_t element_bytes(ElementType type) {
  switch (type) {
    case ElementType::uint8:
      return 1;
    case ElementType::float32:
      return 4;
    default:
      return 2;
  }
}

class ScratchData final : public Scratch {
 public:
  JpegDecoder decoder;
  std::vector<Pass> passes;
  Resizer resizer;
  Buffer<std::uint8_t> fallback;
  // The results of passes before the last, in turn.
  Buffer<std::uint8_t> between[2];
  Buffer<std::uint8_t> row;
};

ScratchData& data_of(Scratch& scratch) { return static_cast<ScratchData&>(scratch); }

// A run of ToDtype and Normalize as y = x * a + b, in float64 (operations.affine() in fastload/transforms).
class Affine {
 public:
  explicit Affine(int channels)
      : scale_(static_cast<std::size_t>(channels), 1.0), offset_(scale_.size(), 0.0) {}

  ElementType type() const { return type_; }
  bool is_float() const { return is_float_; }

  void to_dtype(const OpSpec& spec) {
    const auto& n = spec.numbers;
    if (n.size() != 2 || n[0] < 0 || n[0] > 3 || n[0] != std::floor(n[0]) || (n[1] != 0 && n[1] != 1))
      throw Error(ErrorKind::usage, "image operation to_dtype has numbers out of range");
    const auto type = static_cast<ElementType>(static_cast<int>(n[0]));
    if (type == ElementType::uint8 && is_float_)
      throw Error(ErrorKind::usage, "native code does not convert float images to uint8");
    type_ = type;
    if (type == ElementType::uint8 || is_float_) return;
    is_float_ = true;
    if (n[1] == 1)
      for (double& value : scale_) value *= 1.0 / 255.0;
  }

  void normalize(const OpSpec& spec) {
    const auto& n = spec.numbers;
    const std::size_t channels = scale_.size();
    const std::size_t given = n.empty() || !(n[0] >= 1 && n[0] <= 4) ? 0 : static_cast<std::size_t>(n[0]);
    if (given == 0 || (given != 1 && given != channels) || n.size() != 1 + 2 * given)
      throw Error(ErrorKind::usage,
                  "image operation normalize has not as many numbers as the image channels");
    if (!is_float_)
      throw Error(ErrorKind::usage, "image operation normalize needs float values: to_dtype first");
    for (std::size_t c = 0; c < channels; ++c) {
      const double mean = n[1 + c % given], deviation = n[1 + given + c % given];
      scale_[c] = scale_[c] / deviation;
      offset_[c] = (offset_[c] - mean) / deviation;
    }
  }

  // Both for 24 values of channel `channel`, or of all in turn (-1).
  void expand(int channel, std::array<float, 24>& a, std::array<float, 24>& b) const {
    for (std::size_t i = 0; i < 24; ++i) {
      const std::size_t c = channel < 0 ? i % scale_.size() : static_cast<std::size_t>(channel);
      a[i] = static_cast<float>(scale_[c]);
      b[i] = static_cast<float>(offset_[c]);
      if (!std::isfinite(a[i]) || !std::isfinite(b[i]))
        throw Error(ErrorKind::usage, "the means and deviations of normalize leave the range of float32");
    }
  }

 private:
  std::vector<double> scale_;
  std::vector<double> offset_;
  ElementType type_ = ElementType::uint8;
  bool is_float_ = false;
};

// Writes finished rows into the output: converted, in the output's layout.
class Sink {
 public:
  Sink(std::span<std::byte> output, Size size, int channels, ElementType type, bool planar, bool vectorised)
      : output_(output.data()),
        size_(size),
        channels_(static_cast<std::size_t>(channels)),
        type_(type),
        planar_(planar),
        vectorised_(vectorised) {}

  // `row` is planar with `plane_stride` where the output is.
  void write(std::int64_t y, const std::uint8_t* row, std::size_t plane_stride,
             const std::array<float, 24>* a, const std::array<float, 24>* b) const {
    const auto width = static_cast<std::size_t>(size_.width), height = static_cast<std::size_t>(size_.height);
    const std::size_t bytes = element_bytes(type_), at = static_cast<std::size_t>(y) * width * bytes;
    if (!planar_) return convert(row, width * channels_, a[0], b[0], output_ + at * channels_);
    for (std::size_t c = 0; c < channels_; ++c)
      convert(row + c * plane_stride, width, a[c], b[c], output_ + c * height * width * bytes + at);
  }

 private:
  void convert(const std::uint8_t* in, std::size_t count, const std::array<float, 24>& a,
               const std::array<float, 24>& b, std::byte* out) const {
    if (type_ == ElementType::uint8) {
      std::memcpy(out, in, count);
    } else if (vectorised_) {
      convert_avx2(in, count, a.data(), b.data(), type_, out);
    } else {
      convert_plain(in, count, a.data(), b.data(), type_, out);
    }
  }

  std::byte* output_;
  Size size_;
  std::size_t channels_;
  ElementType type_;
  bool planar_;
  bool vectorised_;
};

// Makes each row of `pass` with its padding, and hands it to `use`(row number, row, plane stride).
template <typename Use>
void each_row(const Pass& pass, Resizer& resizer, Buffer<std::uint8_t>& buffer, int channels, bool planar,
              Use&& use) {
  const Window inner = resizer.inner();
  const auto width = static_cast<std::size_t>(pass.output.width);
  const std::size_t unit = planar ? 1 : static_cast<std::size_t>(channels);
  const std::size_t planes = planar ? static_cast<std::size_t>(channels) : 1;
  const RowLayout layout{planar, width * unit + 32};
  std::uint8_t* row = buffer.reserve(layout.plane_stride * planes);
  const bool padded = inner.height != pass.output.height || inner.width != pass.output.width;
  const auto before = static_cast<std::size_t>(inner.left) * unit,
             after = static_cast<std::size_t>(inner.right()) * unit;
  for (std::int64_t y = 0; y < pass.output.height; ++y) {
    if (padded) std::memset(row, 0, layout.plane_stride * planes);
    if (y >= inner.top && y < inner.bottom()) {
      resizer.write_row(y - inner.top, row + before, layout);
      // Rows may be written past their end.
      if (padded)
        for (std::size_t p = 0; p < planes; ++p)
          std::memset(row + p * layout.plane_stride + after, 0, width * unit - after);
    }
    use(y, row, layout.plane_stride);
  }
}

class CompiledProgram final : public Program {
 public:
  CompiledProgram(std::span<const OpSpec> ops, int channels, std::uint32_t group)
      : channels_(channels), group_(group) {
    if (channels != 1 && channels != 3)
      throw Error(ErrorKind::usage, "images have 3 channels or 1, not " + std::to_string(channels));
    Affine affine(channels);
    for (std::size_t i = 0; i < ops.size(); ++i) add(ops[i], static_cast<std::uint32_t>(i), affine);
    type_ = affine.type();
    const bool planar = layout_ == Layout::nchw;
    for (int c = 0; c < (planar ? channels : 1); ++c)
      affine.expand(planar ? c : -1, scale_[static_cast<std::size_t>(c)],
                    offset_[static_cast<std::size_t>(c)]);
    find_fixed_size();
  }

  ElementType element_type() const override { return type_; }
  Layout layout() const override { return layout_; }
  int channels() const override { return channels_; }
  std::optional<Size> fixed_size() const override { return fixed_size_; }

  Size output_size(std::span<const std::byte> encoded, const SampleKey& key, Scratch& scratch,
                   const FallbackDecoder& fallback) const override {
    if (fixed_size_) return *fixed_size_;
    ScratchData& data = data_of(scratch);
    const Size size = input_size(encoded, data, fallback);
    data.decoder.close();
    resolve(geometry_, size, key, group_, data.passes);
    return last_size(data.passes);
  }

  void run(std::span<const std::byte> encoded, const SampleKey& key, Scratch& scratch,
           const FallbackDecoder& fallback, std::span<std::byte> output) const override {
    ScratchData& data = data_of(scratch);
    View view;
    if (is_jpeg(encoded)) {
      resolve(geometry_, data.decoder.open(encoded), key, group_, data.passes);
      check_room(data, output);
      Window part = data.resizer.prepare(data.passes.front(), channels_);
      // Nothing of the image is needed where only padding shows; it is still to be readable.
      if (part.height == 0 || part.width == 0) part = {part.top, part.left, 1, 1};
      view = data.decoder.decode(part, channels_);
    } else if (const auto raw = view_netpbm(encoded, channels_)) {
      view = *raw;
      resolve(geometry_, {view.window.height, view.window.width}, key, group_, data.passes);
      check_room(data, output);
      data.resizer.prepare(data.passes.front(), channels_);
    } else {
      const Pixels pixels = decode_other(encoded, fallback);
      resolve(geometry_, pixels.size, key, group_, data.passes);
      check_room(data, output);
      data.resizer.prepare(data.passes.front(), channels_);
      view = copy(pixels, data.fallback);
    }
    finish(data, view, output);
  }

 private:
  void add(const OpSpec& spec, std::uint32_t index, Affine& affine) {
    if (is_geometry(spec)) {
      if (affine.is_float())
        throw Error(ErrorKind::usage,
                    "native code moves pixels as uint8: " + spec.name + " must come before to_dtype");
      geometry_.push_back(parse_geometry(spec, index));
    } else if (spec.name == "to_dtype") {
      affine.to_dtype(spec);
    } else if (spec.name == "normalize") {
      affine.normalize(spec);
    } else if (spec.name == "layout") {
      const double number = spec.numbers.size() == 1 ? spec.numbers[0] : -1;
      if (number != 0 && number != 1 && number != 2)
        throw Error(ErrorKind::usage, "image operation layout has numbers out of range");
      layout_ = static_cast<Layout>(static_cast<int>(number));
    } else {
      throw Error(ErrorKind::usage, "native code does not know the image operation " + spec.name);
    }
  }

  // Operations that give one size to two very different images give it to all. An end of the program may do
  // so where the whole of it would take such images over the limit.
  void find_fixed_size() {
    for (std::span<const GeometryOp> end(geometry_); !end.empty() && !fixed_size_; end = end.subspan(1)) {
      const auto wide = size_after(end, {1, 977}), tall = size_after(end, {983, 1});
      if (wide == tall) fixed_size_ = wide;
    }
  }

  std::optional<Size> size_after(std::span<const GeometryOp> ops, Size input) const {
    std::vector<Pass> passes;
    try {
      resolve(ops, input, {}, group_, passes);
    } catch (const Error&) {
      return std::nullopt;
    }
    return last_size(passes);
  }

  static Size last_size(const std::vector<Pass>& passes) {
    return {passes.back().output.height, passes.back().output.width};
  }

  void check_room(const ScratchData& data, std::span<std::byte> output) const {
    const Size size = last_size(data.passes);
    const auto elements = static_cast<std::size_t>(size.height) * static_cast<std::size_t>(size.width);
    if (output.size() < elements * static_cast<std::size_t>(channels_) * element_bytes(type_))
      throw Error(ErrorKind::usage, "too little room for an image of " + std::to_string(size.width) + " x " +
                                        std::to_string(size.height) + " pixels");
  }

  Size input_size(std::span<const std::byte> encoded, ScratchData& data,
                  const FallbackDecoder& fallback) const {
    if (is_jpeg(encoded)) return data.decoder.open(encoded);
    if (const auto pixels = view_netpbm(encoded, channels_))
      return {pixels->window.height, pixels->window.width};
    return decode_other(encoded, fallback).size;
  }

  Pixels decode_other(std::span<const std::byte> encoded, const FallbackDecoder& fallback) const {
    if (encoded.empty()) throw Error(ErrorKind::decode, "the image is empty (0 bytes)");
    if (!fallback) throw Error(ErrorKind::decode, "the image is no JPEG, and there is no decoder for others");
    Pixels pixels = fallback(encoded, channels_);
    const bool sane = pixels.size.height > 0 && pixels.size.width > 0 && pixels.size.height <= kMaxPixels &&
                      pixels.size.width <= kMaxPixels / pixels.size.height && pixels.channels == channels_;
    if (!sane ||
        pixels.data.size() != static_cast<std::size_t>(pixels.size.height * pixels.size.width * channels_))
      throw Error(ErrorKind::decode, "the decoder for other images returned pixels of a wrong size");
    return pixels;
  }

  // Into memory that may be read past the end.
  View copy(const Pixels& pixels, Buffer<std::uint8_t>& buffer) const {
    std::uint8_t* data = buffer.reserve(pixels.data.size());
    std::memcpy(data, pixels.data.data(), pixels.data.size());
    return {data, static_cast<std::size_t>(pixels.size.width * channels_), whole(pixels.size)};
  }

  // Runs the passes; the first is prepared.
  void finish(ScratchData& data, View view, std::span<std::byte> output) const {
    Resizer& resizer = data.resizer;
    for (std::size_t i = 0; i + 1 < data.passes.size(); ++i) {
      const Pass& pass = data.passes[i];
      resizer.begin(view);
      const std::size_t row_bytes = static_cast<std::size_t>(pass.output.width * channels_);
      std::uint8_t* pixels =
          data.between[i % 2].reserve(row_bytes * static_cast<std::size_t>(pass.output.height));
      each_row(pass, resizer, data.row, channels_, false,
               [&](std::int64_t y, const std::uint8_t* row, std::size_t) {
                 std::memcpy(pixels + static_cast<std::size_t>(y) * row_bytes, row, row_bytes);
               });
      view = {pixels, row_bytes, whole({pass.output.height, pass.output.width})};
      resizer.prepare(data.passes[i + 1], channels_);
    }
    resizer.begin(view);
    const Pass& pass = data.passes.back();
    const bool planar = layout_ == Layout::nchw;
    const Sink sink(output, last_size(data.passes), channels_, type_, planar, simd() == Simd::avx2);
    each_row(pass, resizer, data.row, channels_, planar,
             [&](std::int64_t y, const std::uint8_t* row, std::size_t plane_stride) {
               sink.write(y, row, plane_stride, scale_.data(), offset_.data());
             });
  }

  int channels_;
  std::uint32_t group_;
  std::vector<GeometryOp> geometry_;
  ElementType type_ = ElementType::uint8;
  Layout layout_ = Layout::nchw;
  std::optional<Size> fixed_size_;
  std::array<std::array<float, 24>, 3> scale_{};
  std::array<std::array<float, 24>, 3> offset_{};
};

}  // namespace

std::unique_ptr<Scratch> Scratch::make() { return std::make_unique<ScratchData>(); }

std::shared_ptr<const Program> Program::compile(std::span<const OpSpec> ops, int channels,
                                                std::uint32_t group) {
  return std::make_shared<const CompiledProgram>(ops, channels, group);
}

}  // namespace fastload::image

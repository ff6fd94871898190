#include "image/program.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <utility>

#include "image/erase.h"
#include "image/geometry.h"
#include "image/jpeg.h"
#include "image/kernels.h"
#include "image/netpbm.h"
#include "image/pixel_op.h"
#include "image/planes.h"
#include "image/reduce.h"
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
  // The first pass where it is made of planes.
  PlaneResizer planes;
  bool has_planes = false;
  Buffer<std::uint8_t> fallback;
  // The results of passes before the last, in turn.
  Buffer<std::uint8_t> between[2];
  std::size_t turn = 0;
  Buffer<std::uint8_t> row;
  PixelScratch pixels;
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

// Whether decode="fast" is asked for.
bool parse_decode(const OpSpec& spec) {
  if (spec.numbers.size() != 1 || (spec.numbers[0] != 0 && spec.numbers[0] != 1))
    throw Error(ErrorKind::usage, "image operation decode has numbers out of range");
  return spec.numbers[0] == 1;
}

// Writes finished rows into the output: converted, in the output's layout.
class Sink {
 public:
  Sink(std::span<std::byte> output, Size size, int channels, ElementType type, bool planar)
      : output_(output.data()),
        size_(size),
        channels_(static_cast<std::size_t>(channels)),
        type_(type),
        planar_(planar),
        kernels_(kernels()) {}

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
    } else {
      kernels_.convert(in, count, a.data(), b.data(), type_, out);
    }
  }

  std::byte* output_;
  Size size_;
  std::size_t channels_;
  ElementType type_;
  bool planar_;
  const Kernels& kernels_;
};

// What pads `pass` in the pixels [first, last) of a row.
void paint(const Pass& pass, std::uint8_t* row, const RowLayout& layout, std::size_t channels,
           std::size_t first, std::size_t last) {
  for (std::size_t c = 0; c < channels; ++c) {
    if (layout.planar)
      std::memset(row + c * layout.plane_stride + first, pass.fill[c], last - first);
    else
      for (std::size_t x = first; x < last; ++x) row[x * channels + c] = pass.fill[c];
  }
}

// Makes each row of `pass` with its padding, and hands it to `use`(row number, row, plane stride).
template <typename Rows, typename Use>
void each_row(const Pass& pass, Rows& resizer, Buffer<std::uint8_t>& buffer, int channels, bool planar,
              Use&& use) {
  const Window inner = resizer.inner();
  const auto width = static_cast<std::size_t>(pass.output.width);
  const std::size_t unit = planar ? 1 : static_cast<std::size_t>(channels);
  const std::size_t planes = planar ? static_cast<std::size_t>(channels) : 1;
  const RowLayout layout{planar, width * unit + 32};
  std::uint8_t* row = buffer.reserve(layout.plane_stride * planes);
  const bool padded = inner.height != pass.output.height || inner.width != pass.output.width;
  const auto before = static_cast<std::size_t>(inner.left), after = static_cast<std::size_t>(inner.right());
  for (std::int64_t y = 0; y < pass.output.height; ++y) {
    const bool has_pixels = y >= inner.top && y < inner.bottom();
    if (has_pixels) resizer.write_row(y - inner.top, row + before * unit, layout);
    if (padded && has_pixels) {
      paint(pass, row, layout, static_cast<std::size_t>(channels), 0, before);
      paint(pass, row, layout, static_cast<std::size_t>(channels), after, width);
    } else if (padded) {
      paint(pass, row, layout, static_cast<std::size_t>(channels), 0, width);
    }
    use(y, row, layout.plane_stride);
  }
}

// Geometry, then operations on the pixels that come of it. The last stage of a program has none of these: its
// rows go straight into the output.
struct Stage {
  int channels;  // of what comes in
  std::vector<GeometryOp> geometry;
  std::vector<std::unique_ptr<const PixelOp>> pixel_ops;
};

class CompiledProgram final : public Program {
 public:
  CompiledProgram(std::span<const OpSpec> ops, int channels, std::uint32_t group)
      : channels_(channels), group_(group) {
    if (channels != 1 && channels != 3)
      throw Error(ErrorKind::usage, "images have 3 channels or 1, not " + std::to_string(channels));
    stages_.push_back({channels, {}, {}});
    Affine affine(channels);
    for (std::size_t i = 0; i < ops.size(); ++i) add(ops[i], static_cast<std::uint32_t>(i), affine);
    if (!stages_.back().pixel_ops.empty()) stages_.push_back({channels_, {}, {}});
    type_ = affine.type();
    const bool planar = layout_ == Layout::nchw;
    for (int c = 0; c < (planar ? channels_ : 1); ++c)
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
    Size size = input_size(encoded, data, fallback);
    data.decoder.close();
    for (const Stage& stage : stages_) size = begin(stage, size, key, data);
    return size;
  }

  Size run(std::span<const std::byte> encoded, const SampleKey& key, Scratch& scratch,
           const FallbackDecoder& fallback, std::span<std::byte> output) const override {
    ScratchData& data = data_of(scratch);
    data.has_planes = false;
    View view;
    Size size;
    if (is_jpeg(encoded)) {
      size = data.decoder.open(encoded);
      begin(stages_.front(), size, key, data);
      view = decode(size, data);
    } else if (const auto raw = view_netpbm(encoded, stages_.front().channels)) {
      view = *raw;
      size = {view.window.height, view.window.width};
      begin(stages_.front(), size, key, data);
      data.resizer.prepare(data.passes.front(), stages_.front().channels);
    } else {
      const Pixels pixels = decode_other(encoded, fallback);
      size = pixels.size;
      begin(stages_.front(), size, key, data);
      data.resizer.prepare(data.passes.front(), stages_.front().channels);
      view = copy(pixels, data.fallback);
    }
    finish(data, run_stages(data, view, key), key, output);
    return size;
  }

 private:
  void add(const OpSpec& spec, std::uint32_t index, Affine& affine) {
    if (is_geometry(spec)) {
      refuse_float(spec, affine);
      if (!stages_.back().pixel_ops.empty()) stages_.push_back({channels_, {}, {}});
      stages_.back().geometry.push_back(parse_geometry(spec, index, channels_));
    } else if (spec.name == "random_erasing" && affine.is_float()) {
      erasures_.emplace_back(spec, index, channels_);
    } else if (auto op = parse_pixel_op(spec, index, channels_)) {
      refuse_float(spec, affine);
      if (op->output_channels(channels_) != channels_) {
        channels_ = op->output_channels(channels_);
        affine = Affine(channels_);
      }
      stages_.back().pixel_ops.push_back(std::move(op));
    } else if (spec.name == "decode" && index == 0) {
      fast_ = parse_decode(spec);
    } else if (spec.name == "to_dtype") {
      affine.to_dtype(spec);
    } else if (spec.name == "normalize") {
      if (!erasures_.empty())
        throw Error(ErrorKind::usage, "native code does not normalize after random_erasing of float values");
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

  static void refuse_float(const OpSpec& spec, const Affine& affine) {
    if (affine.is_float())
      throw Error(ErrorKind::usage, "native code moves and changes pixels as uint8: " + spec.name +
                                        " must come before to_dtype");
  }

  // An operation that gives two very different images one size gives it to all. Where it takes such images
  // over the limit, there is none.
  void find_fixed_size() {
    for (const Stage& stage : stages_)
      for (const GeometryOp& op : stage.geometry) try {
          if (fixed_size_) {
            fixed_size_ = size_after(op, *fixed_size_);
          } else if (const Size wide = size_after(op, {1, 977}); wide == size_after(op, {983, 1})) {
            fixed_size_ = wide;
          }
        } catch (const Error&) {
          fixed_size_.reset();
        }
  }

  // Resolves a stage's geometry for images of `size`; returns the size after it.
  Size begin(const Stage& stage, Size size, const SampleKey& key, ScratchData& data) const {
    resolve(stage.geometry, size, key, group_, data.passes);
    return last_size(data.passes);
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
    if (const auto pixels = view_netpbm(encoded, stages_.front().channels))
      return {pixels->window.height, pixels->window.width};
    return decode_other(encoded, fallback).size;
  }

  Pixels decode_other(std::span<const std::byte> encoded, const FallbackDecoder& fallback) const {
    if (encoded.empty()) throw Error(ErrorKind::decode, "the image is empty (0 bytes)");
    if (!fallback) throw Error(ErrorKind::decode, "the image is no JPEG, and there is no decoder for others");
    const int channels = stages_.front().channels;
    Pixels pixels = fallback(encoded, channels);
    const bool sane = pixels.size.height > 0 && pixels.size.width > 0 && pixels.size.height <= kMaxPixels &&
                      pixels.size.width <= kMaxPixels / pixels.size.height && pixels.channels == channels;
    if (!sane ||
        pixels.data.size() != static_cast<std::size_t>(pixels.size.height * pixels.size.width * channels))
      throw Error(ErrorKind::decode, "the decoder for other images returned pixels of a wrong size");
    return pixels;
  }

  // Decodes what the first pass over the JPEG image opened, of `size`, reads, and prepares it: as pixels, or
  // as planes in data.planes.
  View decode(Size size, ScratchData& data) const {
    Pass& pass = data.passes.front();
    const int channels = stages_.front().channels;
    DecodeChoice choice;
    if (fast_) {
      const Sampling& sampling = data.decoder.sampling();
      choice.denominator = denominator_of(pass, sampling);
      divide(pass, size, choice.denominator);
      data.has_planes = channels == 3 && data.planes.prepare(pass, sampling, size, choice.denominator);
      if (data.has_planes) {
        data.planes.begin(data.decoder.decode_planes(data.planes.part(), choice));
        return {};
      }
    }
    Window part = data.resizer.prepare(pass, channels);
    // Nothing of the image is needed where only padding shows; it is still to be readable.
    if (part.height == 0 || part.width == 0) part = {part.top, part.left, 1, 1};
    return data.decoder.decode(part, channels, choice);
  }

  // Makes the rows of `pass`, which is prepared, of `view` or of the planes.
  template <typename Use>
  static void make_rows(ScratchData& data, const Pass& pass, const View& view, int channels, bool planar,
                        Use&& use) {
    if (data.has_planes) {
      data.has_planes = false;
      return each_row(pass, data.planes, data.row, channels, planar, use);
    }
    data.resizer.begin(view);
    each_row(pass, data.resizer, data.row, channels, planar, use);
  }

  // Into memory that may be read past the end.
  View copy(const Pixels& pixels, Buffer<std::uint8_t>& buffer) const {
    std::uint8_t* data = buffer.reserve(pixels.data.size());
    std::memcpy(data, pixels.data.data(), pixels.data.size());
    return {data, static_cast<std::size_t>(pixels.size.width * pixels.channels), whole(pixels.size)};
  }

  // Runs the pass `number` of `data.passes`, which is prepared, into memory of the scratch, and prepares the
  // next. `view` becomes the result.
  std::uint8_t* store(ScratchData& data, std::size_t number, int channels, View& view) const {
    const Pass& pass = data.passes[number];
    const auto row_bytes = static_cast<std::size_t>(pass.output.width * channels);
    // Room for three channels: an operation may make three of one.
    std::uint8_t* pixels = data.between[data.turn].reserve(static_cast<std::size_t>(pass.output.height) *
                                                           static_cast<std::size_t>(pass.output.width) * 3);
    data.turn = 1 - data.turn;
    make_rows(data, pass, view, channels, false, [&](std::int64_t y, const std::uint8_t* row, std::size_t) {
      std::memcpy(pixels + static_cast<std::size_t>(y) * row_bytes, row, row_bytes);
    });
    view = {pixels, row_bytes, whole({pass.output.height, pass.output.width})};
    if (number + 1 < data.passes.size()) data.resizer.prepare(data.passes[number + 1], channels);
    return pixels;
  }

  // Runs all stages but the last, whose first pass is then prepared.
  View run_stages(ScratchData& data, View view, const SampleKey& key) const {
    for (std::size_t i = 0; i + 1 < stages_.size(); ++i) {
      const Stage& stage = stages_[i];
      Picture picture{nullptr, last_size(data.passes), stage.channels};
      for (std::size_t number = 0; number < data.passes.size(); ++number)
        picture.data = store(data, number, stage.channels, view);
      for (const auto& op : stage.pixel_ops)
        op->apply(picture, Draws(key.seed, key.epoch, key.position, group_, op->index()), data.pixels);
      view = {picture.data, static_cast<std::size_t>(picture.size.width * picture.channels),
              whole(picture.size)};
      begin(stages_[i + 1], picture.size, key, data);
      data.resizer.prepare(data.passes.front(), stages_[i + 1].channels);
    }
    return view;
  }

  // Runs the last stage into the output.
  void finish(ScratchData& data, View view, const SampleKey& key, std::span<std::byte> output) const {
    check_room(data, output);
    for (std::size_t number = 0; number + 1 < data.passes.size(); ++number)
      store(data, number, channels_, view);
    const Pass& pass = data.passes.back();
    const bool planar = layout_ == Layout::nchw;
    const Size size = last_size(data.passes);
    const Sink sink(output, size, channels_, type_, planar);
    make_rows(data, pass, view, channels_, planar,
              [&](std::int64_t y, const std::uint8_t* row, std::size_t plane_stride) {
                sink.write(y, row, plane_stride, scale_.data(), offset_.data());
              });
    for (const Erasing& erasing : erasures_)
      erasing.erase({output.data(), size, channels_, type_, planar},
                    Draws(key.seed, key.epoch, key.position, group_, erasing.index()));
  }

  int channels_;  // of what comes out; while compiling, of what has come so far
  std::uint32_t group_;
  bool fast_ = false;
  std::vector<Stage> stages_;
  std::vector<Erasing> erasures_;  // of values that are float already
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

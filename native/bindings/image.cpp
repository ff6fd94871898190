// ImageProgram: one image at a time, for tests and for reading single samples. Batches go through the engine.
#include "bindings/image.h"

#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <utility>

#include "bindings/buffer.h"
#include "core/error.h"
#include "image/program.h"
#include "image/simd.h"

namespace fastload::bindings {
namespace {

using PixelArray = nb::ndarray<const std::uint8_t, nb::ndim<3>, nb::c_contig, nb::device::cpu>;
using OpTuple = std::pair<std::string, std::vector<double>>;

nb::dlpack::dtype dtype_of(image::ElementType type) {
  const auto code = [](nb::dlpack::dtype_code value) { return static_cast<std::uint8_t>(value); };
  switch (type) {
    case image::ElementType::uint8:
      return {code(nb::dlpack::dtype_code::UInt), 8, 1};
    case image::ElementType::float16:
      return {code(nb::dlpack::dtype_code::Float), 16, 1};
    case image::ElementType::bfloat16:
      return {code(nb::dlpack::dtype_code::UInt), 16, 1};
    case image::ElementType::float32:
      break;
  }
  return {code(nb::dlpack::dtype_code::Float), 32, 1};
}

image::Scratch& scratch_of_thread() {
  thread_local const std::unique_ptr<image::Scratch> scratch = image::Scratch::make();
  return *scratch;
}

class ImageProgram {
 public:
  ImageProgram(const std::vector<OpTuple>& ops, int channels, std::uint32_t group) {
    std::vector<image::OpSpec> specs;
    for (const auto& [name, numbers] : ops) specs.push_back({name, numbers});
    program_ = image::Program::compile(specs, channels, group);
  }

  std::optional<std::pair<std::int64_t, std::int64_t>> fixed_size() const {
    const auto size = program_->fixed_size();
    if (!size) return std::nullopt;
    return std::pair{size->height, size->width};
  }

  nb::ndarray<nb::numpy> run(nb::handle encoded, std::uint64_t seed, std::uint32_t epoch,
                             std::uint64_t position, nb::object fallback) const {
    const ReadBuffer buffer(encoded);
    const image::FallbackDecoder decode = fallback_decoder(fallback);
    const image::SampleKey key{seed, epoch, position};
    image::Size size;
    std::unique_ptr<std::byte[]> output;
    {
      const nb::gil_scoped_release released;
      image::Scratch& scratch = scratch_of_thread();
      size = program_->output_size(buffer.bytes(), key, scratch, decode);
      const std::size_t bytes = byte_count(size);
      output = std::make_unique_for_overwrite<std::byte[]>(bytes);
      program_->run(buffer.bytes(), key, scratch, decode, {output.get(), bytes});
    }
    std::byte* data = output.release();
    const nb::capsule owner(data, [](void* pointer) noexcept { delete[] static_cast<std::byte*>(pointer); });
    const auto h = static_cast<std::size_t>(size.height), w = static_cast<std::size_t>(size.width);
    const auto c = static_cast<std::size_t>(program_->channels());
    if (program_->layout() == image::Layout::nchw) {
      const std::size_t shape[3] = {c, h, w};
      return {data, 3, shape, owner, nullptr, dtype_of(program_->element_type())};
    }
    const std::size_t shape[3] = {h, w, c};
    return {data, 3, shape, owner, nullptr, dtype_of(program_->element_type())};
  }

 private:
  std::size_t byte_count(image::Size size) const {
    const std::size_t elements = static_cast<std::size_t>(size.height) *
                                 static_cast<std::size_t>(size.width) *
                                 static_cast<std::size_t>(program_->channels());
    return elements * (dtype_of(program_->element_type()).bits / 8);
  }

  std::shared_ptr<const image::Program> program_;
};

}  // namespace

image::FallbackDecoder fallback_decoder(nb::handle decode) {
  if (decode.is_none()) return {};
  return [decode](std::span<const std::byte> encoded, int channels) {
    const nb::gil_scoped_acquire acquired;
    const nb::bytes bytes(reinterpret_cast<const char*>(encoded.data()), encoded.size());
    const nb::object result = decode(bytes, channels);
    PixelArray pixels;
    if (!nb::try_cast<PixelArray>(result, pixels))
      throw Error(ErrorKind::decode, "the decoder for other images returned no C-contiguous HWC uint8 array");
    image::Pixels copy;
    copy.size = {static_cast<std::int64_t>(pixels.shape(0)), static_cast<std::int64_t>(pixels.shape(1))};
    copy.channels = static_cast<int>(pixels.shape(2));
    copy.data.assign(pixels.data(), pixels.data() + pixels.size());
    return copy;
  };
}

namespace {

void use_simd(const std::string& name) {
  for (const image::Simd set : image::available_simd())
    if (image::name_of(set) == name) return image::force_simd(set);
  throw Error(ErrorKind::usage, "this machine has no instruction set named " + name, {},
              "give one of simd_sets()");
}

}  // namespace

void bind_image(nb::module_& module) {
  nb::class_<ImageProgram>(module, "ImageProgram")
      .def(nb::init<const std::vector<OpTuple>&, int, std::uint32_t>(), nb::arg("ops"), nb::arg("channels"),
           nb::arg("group"))
      .def_prop_ro("fixed_size", &ImageProgram::fixed_size)
      .def("run", &ImageProgram::run, nb::arg("encoded"), nb::arg("seed"), nb::arg("epoch"),
           nb::arg("position"), nb::arg("fallback") = nb::none());
  // For tests: all sets give the same bits.
  module.def(
      "simd_sets",
      [] {
        std::vector<std::string> names;
        for (const image::Simd set : image::available_simd()) names.emplace_back(image::name_of(set));
        return names;
      },
      "The instruction sets that image code can use on this machine, from plain to the best.");
  module.def("use_simd", &use_simd, nb::arg("name"), "Use one of simd_sets() from now on, for tests.");
}

}  // namespace fastload::bindings

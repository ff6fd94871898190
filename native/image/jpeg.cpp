#include "image/jpeg.h"

#include <algorithm>
#include <array>
#include <csetjmp>
#include <string>

#include "core/error.h"
#include "image/huffman.h"
#include "image/huffman_check.h"
#include "image/jpeg_codec.h"

// Needs jpeglib.h.
#include <jerror.h>

namespace fastload::image {
namespace {

bool is_harmless(int code) {
  // Bytes between segments, and unknown versions: nothing of the image is lost.
  return code == JWRN_EXTRANEOUS_DATA || code == JWRN_ADOBE_XFORM || code == JWRN_JFIF_MAJOR;
}

// Whether the data ends in an end marker, padding aside.
bool ends_in_marker(std::span<const std::byte> encoded) {
  std::size_t size = encoded.size();
  while (size > 2 && encoded[size - 1] == std::byte{0}) --size;
  return size >= 2 && encoded[size - 2] == std::byte{0xFF} && encoded[size - 1] == std::byte{JPEG_EOI};
}

void check_pixels(Size size) {
  if (size.height * size.width > kMaxPixels)
    throw Error(ErrorKind::decode, "cannot decode the JPEG image: more pixels than the limit of 178,956,970");
}

// Inverted CMYK, as Adobe writes it, to RGB or luma in place, in Pillow's arithmetic.
void convert_cmyk(std::uint8_t* pixels, std::size_t count, int channels) {
  std::uint8_t* out = pixels;
  for (const std::uint8_t* in = pixels; in < pixels + count; in += 4) {
    const int light = in[3];
    int rgb[3];
    for (int c = 0; c < 3; ++c) {
      const int product = (255 - in[c]) * light + 128;
      rgb[c] = std::max(light - (((product >> 8) + product) >> 8), 0);
    }
    if (channels == 3) {
      for (int c = 0; c < 3; ++c) *out++ = static_cast<std::uint8_t>(rgb[c]);
    } else {
      *out++ = static_cast<std::uint8_t>((rgb[0] * 19595 + rgb[1] * 38470 + rgb[2] * 7471 + 0x8000) >> 16);
    }
  }
}

int block_side(const jpeg_component_info& component) {
#if JPEG_LIB_VERSION >= 70
  return component.DCT_h_scaled_size;
#else
  return component.DCT_scaled_size;
#endif
}

Sampling sampling_of(const jpeg_decompress_struct& codec) {
  Sampling sampling;
  sampling.components = std::min(codec.num_components, 4);
  for (std::size_t c = 0; c < static_cast<std::size_t>(sampling.components); ++c) {
    sampling.horizontal[c] = codec.comp_info[c].h_samp_factor;
    sampling.vertical[c] = codec.comp_info[c].v_samp_factor;
  }
  return sampling;
}

}  // namespace

bool is_jpeg(std::span<const std::byte> encoded) {
  return encoded.size() >= 3 && encoded[0] == std::byte{0xFF} && encoded[1] == std::byte{0xD8} &&
         encoded[2] == std::byte{0xFF};
}

// libjpeg reports errors by longjmp. The functions that it may leave that way (run_*) have no object with a
// destructor and live in State, whose members keep their values across the jump.
struct JpegDecoder::State {
  jpeg_decompress_struct codec;
  jpeg_error_mgr errors;
  MemorySource source;
  HuffmanDecoder huffman;
  bool by_libjpeg = false;  // because `huffman` has given up
  jpeg_progress_mgr progress;
  std::jmp_buf jump;
  char message[JMSG_LENGTH_MAX];
  bool is_open = false;
  bool has_end = true;  // the source ends in an end marker
  std::span<const std::byte> encoded;
  Window shown;  // the part of the source that `encoded` shows

  // What run_start() and run_read() are to do; in the coordinates of `shown`.
  Window window;
  std::uint8_t* pixels = nullptr;
  std::size_t stride = 0;
  bool through_end = false;
  JDIMENSION left = 0;  // the first column decoded
  JDIMENSION width = 0;

  // The same for run_start_planes() and run_read_planes(), which count in rows of MCUs.
  struct Target {
    std::uint8_t* data;
    std::size_t stride;
    int rows;  // to an MCU row
  };
  std::array<PlaneGrid, 3> grids;
  std::array<Target, 3> targets;
  JDIMENSION first_row = 0;
  JDIMENSION last_row = 0;
  JDIMENSION lines = 0;  // of the image to an MCU row

  static State& of(j_common_ptr codec) { return *static_cast<State*>(codec->client_data); }

  [[noreturn]] static void fail(j_common_ptr codec) {
    State& state = of(codec);
    codec->err->format_message(codec, state.message);
    std::longjmp(state.jump, 1);
  }
  [[noreturn]] void fail_with(const char* text) {
    std::snprintf(message, sizeof message, "%s", text);
    std::longjmp(jump, 1);
  }

  void start();
  bool run_open();
  bool run_start(int channels, const DecodeChoice& choice);
  bool run_read();
  bool run_start_planes(const DecodeChoice& choice);
  bool run_read_planes();
  void begin_output(const DecodeChoice& choice);
  void choose_columns();
  void read_rows();
  void need_planes(bool needed);
};

void JpegDecoder::State::start() {
  codec.err = jpeg_std_error(&errors);
  errors.error_exit = &State::fail;
  errors.output_message = [](j_common_ptr) {};
  errors.emit_message = [](j_common_ptr codec, int level) {
    if (level < 0 && !is_harmless(codec->err->msg_code)) fail(codec);
  };
  codec.client_data = this;
  source.start(encoded);
  source.huffman = &huffman;
  progress.progress_monitor = [](j_common_ptr common) {
    auto* codec = reinterpret_cast<j_decompress_ptr>(common);
    if (codec->input_scan_number > kMaxScans) of(common).fail_with("more scans than an image can need");
  };
}

bool JpegDecoder::State::run_open() {
  if (setjmp(jump) != 0) return false;
  start();
  jpeg_create_decompress(&codec);
  is_open = true;
  codec.client_data = this;  // cleared by the call above in some versions
  codec.src = &source;
  codec.progress = &progress;
  jpeg_read_header(&codec, TRUE);
  if (const char* why = implausible_size(codec, encoded.size())) fail_with(why);
  return true;
}

void JpegDecoder::State::choose_columns() {
  left = 0;
  width = codec.output_width;
  // Upsampling reads the neighbours of a pixel, and libjpeg changes its method for very narrow images.
  const auto margin = static_cast<std::int64_t>(codec.max_h_samp_factor) * 8;
  const std::int64_t narrow = 4 * margin;
  std::int64_t first = std::max<std::int64_t>(window.left - margin, 0);
  std::int64_t last = std::min<std::int64_t>(window.right() + margin, width);
  if (last - first < narrow) first = std::max<std::int64_t>(last - narrow, 0);
  if (last - first < narrow) last = std::min<std::int64_t>(first + narrow, width);
  if (first == 0 && last == width) return;
  auto crop_left = static_cast<JDIMENSION>(first);
  auto crop_width = static_cast<JDIMENSION>(last - first);
  jpeg_crop_scanline(&codec, &crop_left, &crop_width);
  left = crop_left;
  width = codec.output_width;
}

void JpegDecoder::State::read_rows() {
  const auto stop = through_end ? codec.output_height : static_cast<JDIMENSION>(window.bottom());
  const auto first = static_cast<JDIMENSION>(window.top);
  if (first > 0) jpeg_skip_scanlines(&codec, first);
  while (codec.output_scanline < stop) {
    const JDIMENSION row = codec.output_scanline;
    // Rows below the window are decoded only to see that they are there.
    const auto at =
        static_cast<std::size_t>(std::min<JDIMENSION>(row - first, static_cast<JDIMENSION>(window.height)));
    JSAMPROW rows[8];
    const JDIMENSION wanted = at < static_cast<std::size_t>(window.height)
                                  ? std::min<JDIMENSION>(8, static_cast<JDIMENSION>(window.bottom()) - row)
                                  : 1;
    for (JDIMENSION i = 0; i < wanted; ++i) rows[i] = pixels + (at + i) * stride;
    if (jpeg_read_scanlines(&codec, rows, wanted) == 0) fail_with("truncated");
  }
}

void JpegDecoder::State::begin_output(const DecodeChoice& choice) {
  codec.scale_num = 1;
  codec.scale_denom = static_cast<unsigned>(choice.denominator);
  // Samples of divided planes are means of wide areas: interpolating them would blur more than the resize.
  codec.do_fancy_upsampling = choice.denominator == 1;
  const bool multiple = jpeg_has_multiple_scans(&codec);
  jpeg_start_decompress(&codec);  // reads all of the data where there are multiple scans
  if (multiple && source.ended) fail_with("truncated");
  if (!choice.by_libjpeg && !by_libjpeg && can_replace_entropy(codec)) huffman.attach(codec);
  // Data that does not end in an end marker may be cut off below the window; it must not depend on the window
  // whether an image is readable.
  through_end = !multiple && !has_end;
}

bool JpegDecoder::State::run_start(int channels, const DecodeChoice& choice) {
  if (setjmp(jump) != 0) return false;
  const bool four = codec.jpeg_color_space == JCS_CMYK || codec.jpeg_color_space == JCS_YCCK;
  codec.out_color_space = four ? JCS_CMYK : channels == 1 ? JCS_GRAYSCALE : JCS_RGB;
  begin_output(choice);
  if (has_all_coefficients(codec)) {
    choose_columns();
  } else {
    left = 0;
    width = codec.output_width;
  }
  return true;
}

bool JpegDecoder::State::run_read() {
  if (setjmp(jump) != 0) return false;
  read_rows();
  return true;
}

bool JpegDecoder::State::run_start_planes(const DecodeChoice& choice) {
  if (setjmp(jump) != 0) return false;
  codec.raw_data_out = TRUE;
  begin_output(choice);
  std::int64_t margin = 0;
  for (int c = 0; c < codec.num_components; ++c) {
    const PlaneGrid& grid = grids[static_cast<std::size_t>(c)];
    const jpeg_component_info& component = codec.comp_info[c];
    Target& target = targets[static_cast<std::size_t>(c)];
    if (block_side(component) != grid.block)
      fail_with("its planes have not the sizes that its header states");
    target.rows = component.v_samp_factor * grid.block;
    target.stride =
        static_cast<std::size_t>(component.width_in_blocks) * static_cast<std::size_t>(grid.block);
    if (grid.interpolated) margin = std::max<std::int64_t>(margin, grid.down);
  }
  lines = static_cast<JDIMENSION>(codec.max_v_samp_factor * (DCTSIZE / choice.denominator));
  first_row = static_cast<JDIMENSION>(std::max<std::int64_t>(window.top - margin, 0)) / lines;
  const auto stop =
      std::min<JDIMENSION>(static_cast<JDIMENSION>(window.bottom() + margin), codec.output_height);
  last_row = (stop - 1) / lines;
  return true;
}

// Whether samples are made of the coefficients that are read.
void JpegDecoder::State::need_planes(bool needed) {
  for (int c = 0; c < codec.num_components; ++c) codec.comp_info[c].component_needed = needed ? TRUE : FALSE;
}

bool JpegDecoder::State::run_read_planes() {
  if (setjmp(jump) != 0) return false;
  const JDIMENSION end = through_end ? (codec.output_height - 1) / lines : last_row;
  JSAMPROW rows[3][MAX_SAMP_FACTOR * DCTSIZE];
  JSAMPARRAY planes[3] = {rows[0], rows[1], rows[2]};
  for (JDIMENSION row = 0; row <= end; ++row) {
    const bool needed = row >= first_row && row <= last_row;
    need_planes(needed);
    for (std::size_t c = 0; c < static_cast<std::size_t>(codec.num_components); ++c) {
      const Target& target = targets[c];
      const auto at =
          static_cast<std::size_t>(needed ? row - first_row : 0) * static_cast<std::size_t>(target.rows);
      for (int i = 0; i < target.rows; ++i)
        rows[c][i] = target.data + (at + static_cast<std::size_t>(i)) * target.stride;
    }
    if (jpeg_read_raw_data(&codec, planes, lines) == 0) fail_with("truncated");
  }
  return true;
}

JpegDecoder::JpegDecoder() : state_(std::make_unique<State>()) {}
JpegDecoder::~JpegDecoder() { close(); }

void JpegDecoder::close() {
  if (state_->is_open) jpeg_destroy_decompress(&state_->codec);
  state_->is_open = false;
}

void JpegDecoder::fail() {
  close();
  throw Error(ErrorKind::decode, std::string("cannot decode the JPEG image: ") + state_->message);
}

void JpegDecoder::reopen() {
  State& state = *state_;
  if (state.by_libjpeg || !state.huffman.gave_up()) fail();
  close();
  state.by_libjpeg = true;
  if (!state.run_open()) fail();
}

Size JpegDecoder::open(std::span<const std::byte> encoded) {
  close();
  State& state = *state_;
  state.by_libjpeg = false;
  state.encoded = encoded;
  state.has_end = ends_in_marker(encoded);
  // Whether what follows the last segment is cut off can only be seen by decoding all.
  if (state.has_end && cropper_.open(encoded)) {
    size_ = cropper_.size();
    sampling_ = cropper_.sampling();
    check_pixels(size_);
    return size_;
  }
  if (!state.run_open()) fail();
  size_ = {state.codec.image_height, state.codec.image_width};
  sampling_ = sampling_of(state.codec);
  state.shown = whole(size_);
  return size_;
}

// Opens what open() has left closed: the segments that `window` needs, or the image as it is.
void JpegDecoder::open_part(const Window& window, const DecodeChoice& choice) {
  State& state = *state_;
  state.shown = whole(size_);
  if (choice.by_segments) {
    const std::int64_t times = choice.denominator;
    const Window wanted{window.top * times, window.left * times, window.height * times, window.width * times};
    if (const auto part = cropper_.assemble(intersection(wanted, whole(size_)))) {
      state.encoded = part->stream;
      state.shown = part->window;
    }
  }
  if (!state.run_open()) fail();
  if (!(Size{state.codec.image_height, state.codec.image_width} ==
        Size{state.shown.height, state.shown.width}) ||
      !(sampling_of(state.codec) == sampling_))
    throw Error(ErrorKind::decode, "cannot decode the JPEG image: its headers contradict each other");
}

void JpegDecoder::begin(const Window& window, const DecodeChoice& choice) {
  State& state = *state_;
  if (!state.is_open) open_part(window, choice);
  // Segments begin at whole blocks, which the denominator divides.
  state.window = {window.top - state.shown.top / choice.denominator,
                  window.left - state.shown.left / choice.denominator, window.height, window.width};
}

View JpegDecoder::decode(const Window& window, int channels, const DecodeChoice& choice) {
  State& state = *state_;
  begin(window, choice);
  if (!state.run_start(channels, choice)) fail();
  const int components = state.codec.output_components;
  state.stride = static_cast<std::size_t>(state.width) * static_cast<std::size_t>(components);
  state.pixels = pixels_.reserve(state.stride * static_cast<std::size_t>(window.height + 1));
  if (!state.run_read()) {
    reopen();
    return decode(window, channels, choice);
  }
  close();
  if (components == 4)
    convert_cmyk(state.pixels, state.stride * static_cast<std::size_t>(window.height), channels);
  View view;
  view.data = state.pixels;
  view.stride = static_cast<std::size_t>(state.width) * static_cast<std::size_t>(channels);
  view.window = {window.top, window.left - state.window.left + state.left, window.height, state.width};
  return view;
}

Planes JpegDecoder::decode_planes(const Window& window, const DecodeChoice& choice) {
  State& state = *state_;
  begin(window, choice);
  const auto count = static_cast<std::size_t>(sampling_.components);
  for (std::size_t c = 0; c < count; ++c)
    state.grids[c] = plane_grid(sampling_, static_cast<int>(c), size_, choice.denominator);
  if (!state.run_start_planes(choice)) fail();
  const std::size_t mcu_rows = state.last_row - state.first_row + 1;
  const auto bytes = [&](const State::Target& target) {
    return target.stride * static_cast<std::size_t>(target.rows) * mcu_rows;
  };
  std::size_t total = 0;
  for (std::size_t c = 0; c < count; ++c) total += bytes(state.targets[c]);
  std::uint8_t* data = pixels_.reserve(total);
  for (std::size_t c = 0; c < count; ++c) {
    state.targets[c].data = data;
    data += bytes(state.targets[c]);
  }
  if (!state.run_read_planes()) {
    reopen();
    return decode_planes(window, choice);
  }
  Planes planes;
  planes.count = sampling_.components;
  planes.is_rgb = state.codec.jpeg_color_space == JCS_RGB;
  close();
  for (std::size_t c = 0; c < count; ++c) {
    const State::Target& target = state.targets[c];
    const PlaneGrid& grid = state.grids[c];
    const std::int64_t top = (window.top - state.window.top) / grid.down,
                       left = (window.left - state.window.left) / grid.across;
    planes.views[c] = {
        target.data,
        target.stride,
        {top + static_cast<std::int64_t>(state.first_row) * target.rows, left,
         static_cast<std::int64_t>(mcu_rows) * target.rows, static_cast<std::int64_t>(target.stride)}};
  }
  return planes;
}

}  // namespace fastload::image

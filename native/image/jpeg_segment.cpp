#include "image/jpeg_segment.h"

#include <algorithm>
#include <csetjmp>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <optional>

#include "image/jpeg_codec.h"

// Needs jpeglib.h.
#include <jerror.h>

namespace fastload::image {
namespace {

constexpr int kApp1 = JPEG_APP0 + 1, kApp2 = JPEG_APP0 + 2;
constexpr unsigned kLongestMarker = 0xFFFF;

const char* reason_of(int code) {
  switch (code) {
    case JERR_BAD_PRECISION:
      return "not 8 bits a sample";
    case JERR_SOF_UNSUPPORTED:
      return "lossless or hierarchical";
    case JERR_EMPTY_IMAGE:
      return "its height comes after its data (DNL)";
    case JERR_ARITH_NOTIMPL:
      return "arithmetic coding";
    case JERR_BAD_MCU_SIZE:
    case JERR_COMPONENT_COUNT:
      return "too many samples for one scan";
    case JERR_MISMATCHED_QUANT_TABLE:
      return "quantisation changes between scans";
    default:
      return "damaged";
  }
}

// libjpeg's errors, and every warning, come back by longjmp. The functions that it may leave that way (run_*)
// have no object with a destructor.
struct Errors {
  jpeg_error_mgr manager;
  std::jmp_buf jump;
  const char* reason = nullptr;

  void start() {
    jpeg_std_error(&manager);
    manager.error_exit = [](j_common_ptr codec) { of(codec).fail(reason_of(codec->err->msg_code)); };
    manager.output_message = [](j_common_ptr) {};
    manager.emit_message = [](j_common_ptr codec, int level) {
      if (level < 0) of(codec).fail("damaged");
    };
  }
  static Errors& of(j_common_ptr codec) { return *static_cast<Errors*>(codec->client_data); }
  [[noreturn]] void fail(const char* why) {
    reason = why;
    std::longjmp(jump, 1);
  }
};

// The coefficients of an image.
struct Reader {
  jpeg_decompress_struct codec;
  Errors errors;
  MemorySource source;
  jpeg_progress_mgr progress;
  jvirt_barray_ptr* coefficients = nullptr;
  bool is_open = false;

  Reader() = default;
  Reader(const Reader&) = delete;
  Reader& operator=(const Reader&) = delete;
  ~Reader() {
    if (is_open) jpeg_destroy_decompress(&codec);
  }

  bool run(std::span<const std::byte> encoded, bool keep_icc) {
    if (setjmp(errors.jump) != 0) return false;
    errors.start();
    codec.err = &errors.manager;
    codec.client_data = &errors;
    jpeg_create_decompress(&codec);
    is_open = true;
    codec.client_data = &errors;  // cleared by the call above in some versions
    source.start(encoded);
    codec.src = &source;
    progress.progress_monitor = [](j_common_ptr common) {
      if (reinterpret_cast<j_decompress_ptr>(common)->input_scan_number > kMaxScans)
        Errors::of(common).fail("more scans than an image can need");
    };
    codec.progress = &progress;
    jpeg_save_markers(&codec, kApp1, kLongestMarker);
    if (keep_icc) jpeg_save_markers(&codec, kApp2, kLongestMarker);
    jpeg_read_header(&codec, TRUE);
    if (implausible_size(codec, encoded.size()) != nullptr) errors.fail("damaged");
    if (codec.arith_code) errors.fail("arithmetic coding");
    coefficients = jpeg_read_coefficients(&codec);
    check();
    return true;
  }

  void check() {
    if (source.ended) errors.fail("truncated");
    if (!has_all_coefficients(codec)) errors.fail("progressive with scans missing");
    for (int c = 0; c < codec.num_components; ++c)
      if (codec.comp_info[c].quant_table == nullptr) errors.fail("damaged");
    const J_COLOR_SPACE space = codec.jpeg_color_space;
    const bool four = space == JCS_CMYK || space == JCS_YCCK;
    if (!four && space != JCS_GRAYSCALE && space != JCS_YCbCr && space != JCS_RGB)
      errors.fail("unknown colours");
    // Readers invert CMYK where there is an Adobe marker, which writing adds.
    if (four && !codec.saw_Adobe_marker) errors.fail("CMYK without an Adobe marker");
  }

  unsigned mcus_across() const {
    if (codec.num_components == 1) return codec.comp_info[0].width_in_blocks;
    const unsigned width = static_cast<unsigned>(codec.max_h_samp_factor) * DCTSIZE;
    return (codec.image_width + width - 1) / width;
  }
};

// Memory of a fixed size: an image that does not fit it is given up.
struct FixedDestination : jpeg_destination_mgr {
  void start(std::span<std::byte> memory) {
    init_destination = [](j_compress_ptr) {};
    term_destination = [](j_compress_ptr) {};
    empty_output_buffer = [](j_compress_ptr codec) -> boolean {
      Errors::of(reinterpret_cast<j_common_ptr>(codec)).fail("would become larger");
    };
    next_output_byte = reinterpret_cast<JOCTET*>(memory.data());
    free_in_buffer = memory.size();
  }
};

unsigned number_at(const JOCTET* at, int bytes, bool big) {
  unsigned value = 0;
  for (int i = 0; i < bytes; ++i) value = value << 8 | at[big ? i : bytes - 1 - i];
  return value;
}

// The orientation that an EXIF block states, 1 where it states none (fastload/convert/images.py).
unsigned orientation_of(const JOCTET* tiff, std::size_t size) {
  if (size < 10 || (std::memcmp(tiff, "II", 2) != 0 && std::memcmp(tiff, "MM", 2) != 0)) return 1;
  const bool big = tiff[0] == 'M';
  const std::size_t start = number_at(tiff + 4, 4, big);
  if (start + 2 > size) return 1;
  const unsigned entries = number_at(tiff + start, 2, big);
  for (std::size_t at = start + 2, i = 0; i < entries && at + 12 <= size; ++i, at += 12) {
    if (number_at(tiff + at, 2, big) != 0x0112 || number_at(tiff + at + 2, 2, big) != 3) continue;
    const unsigned value = number_at(tiff + at + 8, 2, big);
    return value >= 1 && value <= 8 ? value : 1;
  }
  return 1;
}

void write_metadata(const Reader& reader, j_compress_ptr codec) {
  unsigned orientation = 1;
  for (jpeg_saved_marker_ptr marker = reader.codec.marker_list; marker != nullptr; marker = marker->next) {
    if (marker->marker == kApp1 && marker->data_length > 6 && std::memcmp(marker->data, "Exif\0", 6) == 0)
      orientation = orientation_of(marker->data + 6, marker->data_length - 6);
    if (marker->marker == kApp2 && marker->data_length > 12 &&
        std::memcmp(marker->data, "ICC_PROFILE", 12) == 0)
      jpeg_write_marker(codec, kApp2, marker->data, marker->data_length);
  }
  if (orientation == 1) return;
  JOCTET exif[] = {'E', 'x',  'i', 'f', 0, 0, 'M', 'M', 0, 42, 0, 0, 0, 8, 0, 1,
                   1,   0x12, 0,   3,   0, 0, 0,   1,   0, 0,  0, 0, 0, 0, 0, 0};
  exif[25] = static_cast<JOCTET>(orientation);
  jpeg_write_marker(codec, kApp1, exif, sizeof exif);
}

struct Writer {
  jpeg_compress_struct codec;
  Errors errors;
  FixedDestination destination;
  bool is_open = false;

  Writer() = default;
  Writer(const Writer&) = delete;
  Writer& operator=(const Writer&) = delete;
  ~Writer() {
    if (is_open) jpeg_destroy_compress(&codec);
  }

  bool run(Reader& reader, unsigned interval, std::span<std::byte> memory) {
    if (setjmp(errors.jump) != 0) return false;
    errors.start();
    codec.err = &errors.manager;
    codec.client_data = &errors;
    jpeg_create_compress(&codec);
    is_open = true;
    codec.client_data = &errors;
    destination.start(memory);
    codec.dest = &destination;
    jpeg_copy_critical_parameters(&reader.codec, &codec);
    codec.optimize_coding = TRUE;
    codec.restart_interval = interval;
    jpeg_write_coefficients(&codec, reader.coefficients);
    write_metadata(reader, &codec);
    jpeg_finish_compress(&codec);
    return true;
  }
};

bool same_headers(const jpeg_decompress_struct& a, const jpeg_decompress_struct& b) {
  if (a.image_width != b.image_width || a.image_height != b.image_height ||
      a.num_components != b.num_components || a.jpeg_color_space != b.jpeg_color_space)
    return false;
  if (a.num_components == 4 && a.Adobe_transform != b.Adobe_transform) return false;
  for (int c = 0; c < a.num_components; ++c) {
    const jpeg_component_info &first = a.comp_info[c], &second = b.comp_info[c];
    if (first.h_samp_factor != second.h_samp_factor || first.v_samp_factor != second.v_samp_factor ||
        std::memcmp(first.quant_table->quantval, second.quant_table->quantval,
                    sizeof first.quant_table->quantval) != 0)
      return false;
  }
  return true;
}

bool run_compare(Reader& a, Reader& b) {
  if (setjmp(a.errors.jump) != 0) return false;
  if (setjmp(b.errors.jump) != 0) return false;
  if (!same_headers(a.codec, b.codec)) return false;
  const auto blocks = [](Reader& reader, int component, JDIMENSION row) {
    return (*reader.codec.mem->access_virt_barray)(reinterpret_cast<j_common_ptr>(&reader.codec),
                                                   reader.coefficients[component], row, 1, FALSE)[0];
  };
  for (int c = 0; c < a.codec.num_components; ++c) {
    const jpeg_component_info& component = a.codec.comp_info[c];
    for (JDIMENSION row = 0; row < component.height_in_blocks; ++row)
      if (std::memcmp(blocks(a, c, row), blocks(b, c, row), component.width_in_blocks * sizeof(JBLOCK)) != 0)
        return false;
  }
  return true;
}

}  // namespace

unsigned restart_interval(unsigned mcus_across) {
  for (const unsigned interval :
       {4u, 5u, 3u, 6u, 2u, 7u, 8u})  // as near to 4; of two, the one of fewer bytes
    if (mcus_across % interval == 0) return interval;
  return mcus_across;
}

Segmented segment_jpeg(std::span<const std::byte> encoded, bool keep_icc) {
  Reader source;
  if (!source.run(encoded, keep_icc)) return {{}, source.errors.reason};
  const unsigned across = source.mcus_across();
  std::vector<std::byte> memory(encoded.size() + 1);  // libjpeg asks for more where all is used
  const char* reason = nullptr;
  for (const unsigned interval : {restart_interval(across), across}) {
    Writer writer;
    if (writer.run(source, interval, memory)) {
      memory.resize(memory.size() - writer.destination.free_in_buffer);
      Reader result;
      if (!result.run(memory, false) || !run_compare(source, result))
        return {{}, "its coefficients would change"};
      return {std::move(memory), {}};
    }
    reason = writer.errors.reason;
    if (interval == across) break;
  }
  return {{}, reason};
}

}  // namespace fastload::image

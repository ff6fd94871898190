#include "image/jpeg_codec.h"

#include <cstdint>

#include "image/jpeg.h"

namespace fastload::image {

void MemorySource::start(std::span<const std::byte> encoded) {
  ended = false;
  init_source = [](j_decompress_ptr) {};
  term_source = [](j_decompress_ptr) {};
  resync_to_restart = jpeg_resync_to_restart;
  fill_input_buffer = [](j_decompress_ptr codec) -> boolean {
    static const JOCTET kEnd[2] = {0xFF, JPEG_EOI};
    static_cast<MemorySource*>(codec->src)->ended = true;
    codec->src->next_input_byte = kEnd;
    codec->src->bytes_in_buffer = sizeof kEnd;
    return TRUE;
  };
  skip_input_data = [](j_decompress_ptr codec, long count) {
    if (count <= 0) return;
    if (static_cast<std::size_t>(count) > codec->src->bytes_in_buffer) {
      codec->src->fill_input_buffer(codec);
      return;
    }
    codec->src->next_input_byte += count;
    codec->src->bytes_in_buffer -= static_cast<std::size_t>(count);
  };
  next_input_byte = reinterpret_cast<const JOCTET*>(encoded.data());
  bytes_in_buffer = encoded.size();
}

const char* implausible_size(const jpeg_decompress_struct& codec, std::size_t bytes) {
  const auto pixels = static_cast<std::int64_t>(codec.image_width) * codec.image_height;
  if (pixels > kMaxPixels) return "more pixels than the limit of 178,956,970";
  if (codec.arith_code) return nullptr;
  // Huffman codes take at least one bit for each block: memory is taken only for what the data can fill.
  std::int64_t blocks = 0;
  for (int i = 0; i < codec.num_components; ++i) {
    const jpeg_component_info& component = codec.comp_info[i];
    const auto across = static_cast<std::int64_t>(codec.image_width) * component.h_samp_factor /
                        (codec.max_h_samp_factor * 8);
    const auto down = static_cast<std::int64_t>(codec.image_height) * component.v_samp_factor /
                      (codec.max_v_samp_factor * 8);
    blocks += across * down;
  }
  return blocks > 8 * static_cast<std::int64_t>(bytes) ? "truncated: too few bytes for its size" : nullptr;
}

bool has_all_coefficients(const jpeg_decompress_struct& codec) {
  if (codec.coef_bits == nullptr) return true;
  for (int i = 0; i < codec.num_components; ++i)
    for (int k = 0; k < DCTSIZE2; ++k)
      if (codec.coef_bits[i][k] != 0) return false;
  return true;
}

}  // namespace fastload::image

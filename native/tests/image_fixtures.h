// Images for the native image tests, made with libjpeg so that no files are needed.
#pragma once

#include <jpeglib.h>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>

namespace fastload::image::fixtures {

class Random {  // a linear congruential generator: the same images everywhere
 public:
  explicit Random(unsigned seed) : state_(seed * 2654435761u + 1) {}
  unsigned next() { return (state_ = state_ * 6364136223846793005ull + 1442695040888963407ull) >> 33; }
  std::int64_t below(unsigned n) { return next() % n; }

 private:
  std::uint64_t state_;
};

struct JpegOptions {
  int width = 64;
  int height = 64;
  int components = 3;
  int horizontal = 2;  // sampling factors of the first component; 0 makes a gray image
  int vertical = 2;
  bool progressive = false;
  bool ycck = false;
  bool tables = true;
  int restart = 0;
  int quality = 85;
  bool optimised = false;  // Huffman tables of its own
};

// Edges and noise in every channel, so that a pixel from the wrong place shows.
inline std::vector<std::uint8_t> make_pixels(int height, int width, int channels, unsigned seed = 1) {
  Random random(seed);
  std::vector<std::uint8_t> pixels;
  for (int y = 0; y < height; ++y)
    for (int x = 0; x < width; ++x)
      for (int c = 0; c < channels; ++c) {
        const int edge = ((x / 5 + y / 3 + c) % 3) * 90;
        pixels.push_back(static_cast<std::uint8_t>(edge + static_cast<int>(random.below(70))));
      }
  return pixels;
}

inline std::vector<std::byte> make_jpeg(const JpegOptions& options) {
  jpeg_compress_struct codec;
  jpeg_error_mgr errors;
  codec.err = jpeg_std_error(&errors);
  jpeg_create_compress(&codec);
  unsigned char* memory = nullptr;
  unsigned long size = 0;
  jpeg_mem_dest(&codec, &memory, &size);
  const int channels = options.horizontal == 0 ? 1 : options.components;
  codec.image_width = static_cast<JDIMENSION>(options.width);
  codec.image_height = static_cast<JDIMENSION>(options.height);
  codec.input_components = channels;
  codec.in_color_space = channels == 1 ? JCS_GRAYSCALE : channels == 4 ? JCS_CMYK : JCS_RGB;
  jpeg_set_defaults(&codec);
  if (channels == 4) jpeg_set_colorspace(&codec, options.ycck ? JCS_YCCK : JCS_CMYK);
  jpeg_set_quality(&codec, options.quality, TRUE);
  if (channels == 3) {
    codec.comp_info[0].h_samp_factor = options.horizontal;
    codec.comp_info[0].v_samp_factor = options.vertical;
  }
  codec.optimize_coding = options.optimised ? TRUE : FALSE;
  codec.restart_interval = static_cast<unsigned>(options.restart);
  if (options.progressive) jpeg_simple_progression(&codec);
  if (!options.tables) jpeg_suppress_tables(&codec, TRUE);
  jpeg_start_compress(&codec, options.tables);
  const auto pixels = make_pixels(options.height, options.width, channels);
  while (codec.next_scanline < codec.image_height) {
    auto* row = const_cast<JSAMPROW>(pixels.data()) + static_cast<std::size_t>(codec.next_scanline) *
                                                          static_cast<std::size_t>(options.width * channels);
    jpeg_write_scanlines(&codec, &row, 1);
  }
  jpeg_finish_compress(&codec);
  const auto* first = reinterpret_cast<const std::byte*>(memory);
  std::vector<std::byte> encoded(first, first + size);
  jpeg_destroy_compress(&codec);
  std::free(memory);
  return encoded;
}

}  // namespace fastload::image::fixtures

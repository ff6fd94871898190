// What decoding and rewriting JPEG images have in common over libjpeg.
#pragma once

#include <cstddef>
#include <cstdio>
#include <span>

// jpeglib.h needs size_t and FILE from the headers above.
#include <jpeglib.h>

namespace fastload::image {

class HuffmanDecoder;

// More scans than any encoder writes; each costs a walk over all coefficients.
inline constexpr int kMaxScans = 100;

// Feeds libjpeg from memory, and with an end marker where that has run out: libjpeg reads ahead of where it
// needs data, and complains where they are really short.
struct MemorySource : jpeg_source_mgr {
  bool ended = false;                 // the data has run out
  HuffmanDecoder* huffman = nullptr;  // what reads in libjpeg's place, where it is attached

  void start(std::span<const std::byte> encoded);
};

// Says why an image cannot be as large as its header says, or null. To be asked after jpeg_read_header().
const char* implausible_size(const jpeg_decompress_struct& codec, std::size_t bytes);

// Whether all coefficients of a progressive image have come in full. Where not, libjpeg guesses at them from
// the neighbours.
bool has_all_coefficients(const jpeg_decompress_struct& codec);

}  // namespace fastload::image

// Whether libjpeg is built as huffman.h needs it.
#pragma once

#include <cstddef>
#include <cstdio>

// jpeglib.h needs size_t and FILE from the headers above.
#include <jpeglib.h>

namespace fastload::image {

// The head of libjpeg's struct jpeg_entropy_decoder, whose header is not installed: the same in every version
// since 6b.
struct EntropyHead {
  void (*start_pass)(j_decompress_ptr codec);
  boolean (*decode_mcu)(j_decompress_ptr codec, JBLOCKROW* blocks);
};

inline EntropyHead& entropy_head(const jpeg_decompress_struct& codec) {
  return *reinterpret_cast<EntropyHead*>(codec.entropy);
}

// Whether a HuffmanDecoder may take over for the image that jpeg_start_decompress() has begun: libjpeg would
// decode its one scan as baseline, and is a version known to be as expected. The first call makes sure, by
// decoding a small image in both ways; where they differ, it is never true.
bool can_replace_entropy(jpeg_decompress_struct& codec);

}  // namespace fastload::image

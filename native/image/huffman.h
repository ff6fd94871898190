// Huffman decoding of baseline JPEG images in place of libjpeg's own, which is slow where there are restart
// markers. Headers, DCT, upsampling and colours stay libjpeg's, and with them every pixel.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdio>

// jpeglib.h needs size_t and FILE from the headers above.
#include <jpeglib.h>

namespace fastload::image {

// What a code stands for, in one word, because finding out how many bits to go on is what takes the time:
// `run` coefficients of 0, then one of another value. `run` is a Run where it is more.
class HuffmanSymbol {
 public:
  enum Run : std::uint32_t { end_of_block = 16, zeros, long_code, no_code };

  static constexpr int kMostValueBits = 11;  // in images of 8 bits
  static constexpr int kMostBits = 16 + kMostValueBits;

  constexpr HuffmanSymbol() : HuffmanSymbol(1, no_code, 0) {}
  constexpr HuffmanSymbol(std::uint32_t bits, std::uint32_t run, std::uint32_t value_bits)
      : word_(bits | run << 8 | ((1U << value_bits) - 1) << 16) {}

  // Of code and value together: 1 to kMostBits.
  unsigned bits() const { return word_ & 63; }
  std::uint32_t run() const { return word_ >> 8 & 255; }
  bool is_special() const { return (word_ & std::uint32_t{end_of_block} << 8) != 0; }
  // The bits of the value.
  std::uint32_t mask() const { return word_ >> 16; }

 private:
  std::uint32_t word_;
};

// One table of an image, to be asked with the next bits of its data.
class HuffmanTable {
 public:
  static constexpr int kShort = 9;  // codes of more bits take a search

  // False where it is no table of `is_dc` coefficients, or has larger values. Costs next to nothing for the
  // table of the last time.
  bool build(const JHUFF_TBL& table, bool is_dc);

  // Of the 64 next bits. A long_code is to be looked up in find_long().
  HuffmanSymbol find(std::uint64_t next) const { return short_[next >> (64 - kShort)]; }
  HuffmanSymbol find_long(std::uint64_t next) const;

 private:
  bool remember(const JHUFF_TBL& table, bool is_dc);
  HuffmanSymbol symbol(std::size_t index, int code_bits) const;

  std::array<HuffmanSymbol, 1 << kShort> short_;
  // Of codes with a number of bits: what lies above them as 16 bits, and the index of code 0 if there were.
  std::array<std::uint32_t, 17> limit_{};
  std::array<std::int32_t, 17> offset_{};
  // What it is built of.
  bool is_built_ = false, is_dc_ = false;
  std::array<std::uint8_t, 17> counts_{};
  std::array<std::uint8_t, 256> values_{};
};

// Bits of entropy-coded data, the next one highest.
struct BitReader {
  std::uint64_t word = 0;
  int count = 0;    // of bits in `word`; more may follow, which are those that will come
  int padding = 0;  // how many of them come after the end, or after a marker
  const std::uint8_t* next = nullptr;
  const std::uint8_t* end = nullptr;
};

// One image at a time. Damage is libjpeg's to judge: it ends decoding, which then is to be done anew without.
class HuffmanDecoder {
 public:
  // Takes over for an image that jpeg_start_decompress() has begun, whose source is a MemorySource that names
  // this decoder, and of which can_replace_entropy() is true. False where libjpeg goes on alone.
  bool attach(jpeg_decompress_struct& codec);

  // Decoding has ended by error_exit() for what may be damage.
  bool gave_up() const { return gave_up_; }

 private:
  struct Block {  // of an MCU
    const HuffmanTable* dc;
    const HuffmanTable* ac;
    int component;
  };

  static boolean decode_mcu(j_decompress_ptr codec, JBLOCKROW* blocks);
  static boolean decode_mcu_bmi2(j_decompress_ptr codec, JBLOCKROW* blocks);
  bool prepare(const jpeg_decompress_struct& codec);
  bool decode(JBLOCKROW* blocks);
  bool restart();
  [[noreturn]] void give_up(j_decompress_ptr codec);

  BitReader reader_;
  std::array<std::int32_t, MAX_COMPS_IN_SCAN> predictions_{};
  std::array<Block, D_MAX_BLOCKS_IN_MCU> blocks_{};
  int block_count_ = 0;
  unsigned interval_ = 0;   // in MCUs, 0 without restart markers
  unsigned remaining_ = 0;  // of the interval
  int restarts_ = 0;
  bool gave_up_ = false;
  std::array<HuffmanTable, NUM_HUFF_TBLS> dc_, ac_;
  JBLOCK unwanted_;
};

}  // namespace fastload::image

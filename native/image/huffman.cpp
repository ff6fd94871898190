#include "image/huffman.h"

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <cstring>
#include <limits>

#include "image/huffman_check.h"
#include "image/jpeg_codec.h"
#include "image/vectorise.h"

namespace fastload::image {
namespace {

// Where coefficient k lies in a block. Runs may lead 15 places too far before it is noticed.
constexpr std::array<std::uint8_t, DCTSIZE2 + 16> natural_order() {
  std::array<std::uint8_t, DCTSIZE2 + 16> order{};
  order.fill(DCTSIZE2 - 1);
  std::size_t k = 0;
  for (int diagonal = 0; diagonal < 2 * DCTSIZE - 1; ++diagonal)
    for (int i = 0; i <= diagonal; ++i) {
      const int row = diagonal % 2 == 0 ? diagonal - i : i, column = diagonal - row;
      if (row < DCTSIZE && column < DCTSIZE) order[k++] = static_cast<std::uint8_t>(row * DCTSIZE + column);
    }
  return order;
}

constexpr auto kNaturalOrder = natural_order();

std::uint64_t load_high_first(const std::uint8_t* from) {
  std::uint64_t value;
  std::memcpy(&value, from, sizeof value);
  if constexpr (std::endian::native == std::endian::little) value = __builtin_bswap64(value);
  return value;
}

// Byte by byte, without the zeros that follow 0xFF. Takes and gives values, so that callers keep registers.
[[gnu::noinline]] BitReader fill_slowly(BitReader reader) {
  while (reader.count < 56) {
    std::uint64_t byte = 0;
    if (reader.next < reader.end && *reader.next != 0xFF) {
      byte = *reader.next++;
    } else if (reader.end - reader.next >= 2 && reader.next[1] == 0) {
      byte = 0xFF;
      reader.next += 2;
    } else {
      reader.padding += 8;
    }
    reader.word |= byte << (56 - reader.count);
    reader.count += 8;
  }
  return reader;
}

// To enough bits for a symbol.
FASTLOAD_INLINE void fill(BitReader& reader) {
  if (reader.count >= HuffmanSymbol::kMostBits) return;
  if (reader.end - reader.next >= 8) {
    const std::uint64_t bytes = load_high_first(reader.next);
    const bool has_ff = ((~bytes - 0x0101010101010101) & bytes & 0x8080808080808080) != 0;
    if (!has_ff) {
      reader.word |= bytes >> reader.count;
      reader.next += (63 - reader.count) >> 3;
      reader.count |= 56;
      return;
    }
  }
  reader = fill_slowly(reader);
}

FASTLOAD_INLINE void consume(BitReader& reader, HuffmanSymbol symbol) {
  reader.word <<= symbol.bits();
  reader.count -= static_cast<int>(symbol.bits());
}

// The value after the code. Where its first bit is 0 it is negative, and all bits are the other way round.
FASTLOAD_INLINE std::int32_t value_of(std::uint64_t word, HuffmanSymbol symbol) {
  const auto mask = static_cast<std::int32_t>(symbol.mask());
  const std::int32_t bits = static_cast<std::int32_t>(word >> (64 - symbol.bits())) & mask;
  const std::int32_t positive = ((mask >> 1) - bits) >> 31;  // all bits, or none
  return bits - (mask & ~positive);
}

// Where a block ends, and where damage leads.
constexpr int kEnd = DCTSIZE2, kDamaged = 2 * DCTSIZE2;

// Decodes what is at coefficient k; the next is returned.
FASTLOAD_INLINE int decode_next(BitReader& reader, const HuffmanTable& table, int k, JCOEF* block) {
  HuffmanSymbol symbol = table.find(reader.word);
  if (symbol.is_special()) [[unlikely]] {
    if (symbol.run() == HuffmanSymbol::long_code) symbol = table.find_long(reader.word);
    if (symbol.run() == HuffmanSymbol::no_code) return kDamaged;
    if (symbol.is_special()) {
      consume(reader, symbol);
      return symbol.run() == HuffmanSymbol::end_of_block ? kEnd : k + 16;
    }
  }
  k += static_cast<int>(symbol.run());
  block[kNaturalOrder[static_cast<std::size_t>(k)]] = static_cast<JCOEF>(value_of(reader.word, symbol));
  consume(reader, symbol);
  return k + 1;
}

// The coefficients of a block but the first. False for what no encoder writes.
FASTLOAD_INLINE bool decode_ac(BitReader& reader, const HuffmanTable& table, JCOEF* block) {
  int k = 1;
  while (k < kEnd) {
    fill(reader);
    k = decode_next(reader, table, k, block);
  }
  return k == kEnd;
}

FASTLOAD_INLINE bool decode_dc(BitReader& reader, const HuffmanTable& table, std::int32_t& prediction) {
  fill(reader);
  HuffmanSymbol symbol = table.find(reader.word);
  if (symbol.run() == HuffmanSymbol::long_code) symbol = table.find_long(reader.word);
  if (symbol.run() == HuffmanSymbol::no_code) return false;
  prediction += value_of(reader.word, symbol);
  consume(reader, symbol);
  using Limits = std::numeric_limits<JCOEF>;
  return prediction >= Limits::min() && prediction <= Limits::max();
}

bool has_bmi2() {
#if FASTLOAD_X86
  return __builtin_cpu_supports("bmi2") != 0;
#else
  return false;
#endif
}

}  // namespace

// False where it is the table of the last time.
bool HuffmanTable::remember(const JHUFF_TBL& table, bool is_dc) {
  std::size_t count = 0;
  for (std::size_t bits = 1; bits < counts_.size(); ++bits) count += table.bits[bits];
  count = std::min(count, values_.size());
  if (is_built_ && is_dc_ == is_dc && std::equal(counts_.begin() + 1, counts_.end(), table.bits + 1) &&
      std::equal(table.huffval, table.huffval + count, values_.begin()))
    return false;
  is_built_ = false;
  is_dc_ = is_dc;
  std::copy_n(table.bits, counts_.size(), counts_.begin());
  std::copy_n(table.huffval, count, values_.begin());
  return true;
}

HuffmanSymbol HuffmanTable::symbol(std::size_t index, int code_bits) const {
  const std::uint32_t value = values_[index], bits = static_cast<std::uint32_t>(code_bits);
  if (is_dc_) return {bits + value, 0, value};
  const std::uint32_t size = value & 15, run = value >> 4;
  // A run of 15 without a value is one of 16; any other ends the block.
  if (size == 0) return {bits, run == 15 ? HuffmanSymbol::zeros : HuffmanSymbol::end_of_block, 0};
  return {bits + size, run, size};
}

bool HuffmanTable::build(const JHUFF_TBL& table, bool is_dc) {
  if (!remember(table, is_dc)) return true;
  constexpr HuffmanSymbol longer(1, HuffmanSymbol::long_code, 0);
  std::size_t index = 0, filled = 0;
  std::uint32_t code = 0;
  for (int bits = 1; bits <= 16; ++bits) {
    const auto length = static_cast<std::size_t>(bits);
    offset_[length] = static_cast<std::int32_t>(index) - static_cast<std::int32_t>(code);
    const std::size_t last = index + counts_[length];
    if (last > values_.size()) return false;
    for (; index < last; ++index, ++code) {
      if ((is_dc ? values_[index] : values_[index] & 15) > HuffmanSymbol::kMostValueBits) return false;
      if (bits > kShort || code >= 1U << bits) continue;
      const std::size_t times = std::size_t{1} << (kShort - bits);
      std::fill_n(short_.begin() + static_cast<std::ptrdiff_t>(filled), times, symbol(index, bits));
      filled += times;
    }
    if (code > 1U << bits) return false;  // more codes than there can be
    limit_[length] = code << (16 - bits);
    code <<= 1;
  }
  std::fill(short_.begin() + static_cast<std::ptrdiff_t>(filled), short_.end(), longer);
  is_built_ = true;
  return true;
}

HuffmanSymbol HuffmanTable::find_long(std::uint64_t next) const {
  const auto code = static_cast<std::uint32_t>(next >> 48);
  for (std::size_t bits = kShort + 1; bits <= 16; ++bits)
    if (code < limit_[bits]) {
      const auto index = static_cast<std::int32_t>(code >> (16 - bits)) + offset_[bits];
      return symbol(static_cast<std::size_t>(index), static_cast<int>(bits));
    }
  return {};
}

bool HuffmanDecoder::attach(jpeg_decompress_struct& codec) {
  gave_up_ = false;
  if (!prepare(codec)) return false;
  entropy_head(codec).decode_mcu = has_bmi2() ? decode_mcu_bmi2 : decode_mcu;
  return true;
}

bool HuffmanDecoder::prepare(const jpeg_decompress_struct& codec) {
  if (codec.comps_in_scan != codec.num_components || codec.data_precision != 8) return false;
  if (codec.blocks_in_MCU < 1 || codec.blocks_in_MCU > D_MAX_BLOCKS_IN_MCU) return false;
  for (int c = 0; c < codec.comps_in_scan; ++c) {
    const jpeg_component_info& component = *codec.cur_comp_info[c];
    const auto dc = static_cast<std::size_t>(component.dc_tbl_no);
    const auto ac = static_cast<std::size_t>(component.ac_tbl_no);
    if (dc >= NUM_HUFF_TBLS || codec.dc_huff_tbl_ptrs[dc] == nullptr) return false;
    if (ac >= NUM_HUFF_TBLS || codec.ac_huff_tbl_ptrs[ac] == nullptr) return false;
    if (!dc_[dc].build(*codec.dc_huff_tbl_ptrs[dc], true)) return false;
    if (!ac_[ac].build(*codec.ac_huff_tbl_ptrs[ac], false)) return false;
  }
  block_count_ = codec.blocks_in_MCU;
  for (std::size_t b = 0; b < static_cast<std::size_t>(block_count_); ++b) {
    const int c = codec.MCU_membership[b];
    const jpeg_component_info& component = *codec.cur_comp_info[c];
    blocks_[b] = {&dc_[static_cast<std::size_t>(component.dc_tbl_no)],
                  &ac_[static_cast<std::size_t>(component.ac_tbl_no)], c};
  }
  reader_ = {};
  reader_.next = codec.src->next_input_byte;
  reader_.end = reader_.next + codec.src->bytes_in_buffer;
  predictions_ = {};
  interval_ = remaining_ = codec.restart_interval;
  restarts_ = 0;
  return true;
}

// To the next segment, whose marker must be there, with no byte left before it.
bool HuffmanDecoder::restart() {
  if (reader_.count - reader_.padding >= 8 || reader_.end - reader_.next < 2) return false;
  if (reader_.next[0] != 0xFF || reader_.next[1] != JPEG_RST0 + restarts_) return false;
  restarts_ = (restarts_ + 1) % 8;
  reader_.next += 2;
  reader_.word = 0;
  reader_.count = reader_.padding = 0;
  predictions_ = {};
  remaining_ = interval_;
  return true;
}

// `blocks` is null where nobody wants them; otherwise they hold zeros.
FASTLOAD_INLINE bool HuffmanDecoder::decode(JBLOCKROW* blocks) {
  if (interval_ != 0) {
    if (remaining_ == 0 && !restart()) return false;
    --remaining_;
  }
  BitReader reader = reader_;
  for (int b = 0; b < block_count_; ++b) {
    const Block& block = blocks_[static_cast<std::size_t>(b)];
    JCOEF* coefficients = blocks != nullptr ? blocks[b][0] : unwanted_;
    std::int32_t& prediction = predictions_[static_cast<std::size_t>(block.component)];
    if (!decode_dc(reader, *block.dc, prediction)) return false;
    coefficients[0] = static_cast<JCOEF>(prediction);
    if (!decode_ac(reader, *block.ac, coefficients)) return false;
  }
  reader_ = reader;
  return reader.count >= reader.padding;  // otherwise the data has run out
}

void HuffmanDecoder::give_up(j_decompress_ptr codec) {
  gave_up_ = true;
  codec->err->error_exit(reinterpret_cast<j_common_ptr>(codec));
  std::abort();  // it never returns
}

boolean HuffmanDecoder::decode_mcu(j_decompress_ptr codec, JBLOCKROW* blocks) {
  HuffmanDecoder& self = *static_cast<MemorySource*>(codec->src)->huffman;
  if (!self.decode(blocks)) self.give_up(codec);
  return TRUE;
}

// Shifts by any number of bits are cheaper there.
FASTLOAD_TARGET_BMI2 boolean HuffmanDecoder::decode_mcu_bmi2(j_decompress_ptr codec, JBLOCKROW* blocks) {
  HuffmanDecoder& self = *static_cast<MemorySource*>(codec->src)->huffman;
  if (!self.decode(blocks)) self.give_up(codec);
  return TRUE;
}

}  // namespace fastload::image

#include "core/crc32c.h"

#include <array>
#include <bit>
#include <cstring>

#if defined(__x86_64__)
#define FASTLOAD_CRC_TARGET __attribute__((target("sse4.2")))
#elif defined(__aarch64__)
#define FASTLOAD_CRC_TARGET __attribute__((target("+crc")))
#if defined(__linux__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif
#endif

static_assert(std::endian::native == std::endian::little, "files are mapped as they are: little-endian only");

namespace fastload {
namespace {

using Table = std::array<std::uint32_t, 256>;

// tables[k][b] is what byte b does to the remainder when k zero bytes follow it.
constexpr std::array<Table, 8> make_tables() {
  std::array<Table, 8> tables{};
  for (std::uint32_t i = 0; i < 256; ++i) {
    std::uint32_t value = i;
    for (int bit = 0; bit < 8; ++bit) value = value & 1 ? value >> 1 ^ 0x82F63B78u : value >> 1;
    tables[0][i] = value;
  }
  for (std::size_t k = 1; k < 8; ++k) {
    for (std::size_t i = 0; i < 256; ++i) {
      tables[k][i] = tables[0][tables[k - 1][i] & 0xFF] ^ tables[k - 1][i] >> 8;
    }
  }
  return tables;
}
constexpr auto tables = make_tables();

std::uint64_t load64(const std::byte* data) {
  std::uint64_t value;
  std::memcpy(&value, data, sizeof value);
  return value;
}

std::uint32_t update_portable(std::uint32_t crc, const std::byte* data, std::size_t bytes) {
  for (; bytes >= 8; data += 8, bytes -= 8) {
    const std::uint64_t word = load64(data) ^ crc;
    crc = tables[7][word & 0xFF] ^ tables[6][word >> 8 & 0xFF] ^ tables[5][word >> 16 & 0xFF] ^
          tables[4][word >> 24 & 0xFF] ^ tables[3][word >> 32 & 0xFF] ^ tables[2][word >> 40 & 0xFF] ^
          tables[1][word >> 48 & 0xFF] ^ tables[0][word >> 56];
  }
  for (; bytes != 0; ++data, --bytes) {
    crc = tables[0][(crc ^ std::to_integer<std::uint32_t>(*data)) & 0xFF] ^ crc >> 8;
  }
  return crc;
}

#if defined(FASTLOAD_CRC_TARGET)

// Appending zero bytes is linear over GF(2), so a table of four bytes' contributions advances a remainder
// over `1 << log2_bytes` of them. Found by squaring the operator of one byte.
template <int log2_bytes>
constexpr std::array<Table, 4> make_advance() {
  std::array<std::uint32_t, 32> columns{};
  for (std::size_t bit = 0; bit < 32; ++bit) {
    const std::uint32_t value = std::uint32_t{1} << bit;
    columns[bit] = tables[0][value & 0xFF] ^ value >> 8;
  }
  const auto apply = [](const std::array<std::uint32_t, 32>& matrix, std::uint32_t value) {
    std::uint32_t result = 0;
    for (std::size_t bit = 0; value != 0; ++bit, value >>= 1) {
      if (value & 1) result ^= matrix[bit];
    }
    return result;
  };
  for (int step = 0; step < log2_bytes; ++step) {
    auto squared = columns;
    for (std::size_t bit = 0; bit < 32; ++bit) squared[bit] = apply(columns, columns[bit]);
    columns = squared;
  }
  std::array<Table, 4> advance{};
  for (std::size_t k = 0; k < 4; ++k) {
    for (std::uint32_t i = 0; i < 256; ++i) advance[k][i] = apply(columns, i << 8 * k);
  }
  return advance;
}

template <int log2_bytes>
std::uint32_t advance(std::uint32_t crc) {
  static constexpr auto table = make_advance<log2_bytes>();
  return table[0][crc & 0xFF] ^ table[1][crc >> 8 & 0xFF] ^ table[2][crc >> 16 & 0xFF] ^ table[3][crc >> 24];
}

#if defined(__x86_64__)
FASTLOAD_CRC_TARGET inline std::uint64_t step8(std::uint64_t crc, std::uint64_t word) {
  return __builtin_ia32_crc32di(crc, word);
}
FASTLOAD_CRC_TARGET inline std::uint64_t step1(std::uint64_t crc, std::byte byte) {
  return __builtin_ia32_crc32qi(static_cast<std::uint32_t>(crc), static_cast<std::uint8_t>(byte));
}
bool has_instruction() { return __builtin_cpu_supports("sse4.2") != 0; }
#else
FASTLOAD_CRC_TARGET inline std::uint64_t step8(std::uint64_t crc, std::uint64_t word) {
#if defined(__clang__)
  return __builtin_arm_crc32cd(static_cast<std::uint32_t>(crc), word);
#else
  return __builtin_aarch64_crc32cx(static_cast<std::uint32_t>(crc), word);
#endif
}
FASTLOAD_CRC_TARGET inline std::uint64_t step1(std::uint64_t crc, std::byte byte) {
#if defined(__clang__)
  return __builtin_arm_crc32cb(static_cast<std::uint32_t>(crc), static_cast<std::uint8_t>(byte));
#else
  return __builtin_aarch64_crc32cb(static_cast<std::uint32_t>(crc), static_cast<std::uint8_t>(byte));
#endif
}
bool has_instruction() {
#if defined(__linux__)
  return (getauxval(AT_HWCAP) & HWCAP_CRC32) != 0;
#else
  return true;  // every 64-bit Apple CPU has it
#endif
}
#endif

// The instruction takes one word a cycle but answers after three, so three lanes run side by side over
// neighbouring stretches and are then joined.
template <int log2_bytes>
FASTLOAD_CRC_TARGET std::uint64_t three_lanes(std::uint64_t crc, const std::byte*& data, std::size_t& bytes) {
  constexpr std::size_t lane = std::size_t{1} << log2_bytes;
  while (bytes >= 3 * lane) {
    std::uint64_t second = 0;
    std::uint64_t third = 0;
    for (std::size_t i = 0; i < lane; i += 8) {
      crc = step8(crc, load64(data + i));
      second = step8(second, load64(data + lane + i));
      third = step8(third, load64(data + 2 * lane + i));
    }
    crc = advance<log2_bytes>(static_cast<std::uint32_t>(crc)) ^ second;
    crc = advance<log2_bytes>(static_cast<std::uint32_t>(crc)) ^ third;
    data += 3 * lane;
    bytes -= 3 * lane;
  }
  return crc;
}

FASTLOAD_CRC_TARGET std::uint32_t update_instruction(std::uint32_t remainder, const std::byte* data,
                                                     std::size_t bytes) {
  std::uint64_t crc = remainder;
  crc = three_lanes<12>(crc, data, bytes);
  crc = three_lanes<8>(crc, data, bytes);
  for (; bytes >= 8; data += 8, bytes -= 8) crc = step8(crc, load64(data));
  for (; bytes != 0; ++data, --bytes) crc = step1(crc, *data);
  return static_cast<std::uint32_t>(crc);
}

const auto update = has_instruction() ? update_instruction : update_portable;

#else

constexpr auto update = update_portable;

#endif

}  // namespace

std::uint32_t crc32c(std::span<const std::byte> data, std::uint32_t crc) {
  return ~update(~crc, data.data(), data.size());
}

std::uint32_t crc32c_portable(std::span<const std::byte> data, std::uint32_t crc) {
  return ~update_portable(~crc, data.data(), data.size());
}

}  // namespace fastload

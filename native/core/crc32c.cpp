#include "core/crc32c.h"

#include <array>

namespace fastload {
namespace {

constexpr std::array<std::uint32_t, 256> make_table() {
  std::array<std::uint32_t, 256> table{};
  for (std::uint32_t i = 0; i < 256; ++i) {
    std::uint32_t value = i;
    for (int bit = 0; bit < 8; ++bit) value = value & 1 ? value >> 1 ^ 0x82F63B78u : value >> 1;
    table[i] = value;
  }
  return table;
}
constexpr auto table = make_table();

}  // namespace

std::uint32_t crc32c(std::span<const std::byte> data, std::uint32_t crc) {
  crc = ~crc;
  for (std::byte byte : data) crc = table[(crc ^ static_cast<std::uint8_t>(byte)) & 0xFF] ^ crc >> 8;
  return ~crc;
}

}  // namespace fastload

// CRC-32C (Castagnoli), as docs/format.md defines it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace fastload {

// Continues `crc` (0 at the beginning) over `data`. Uses the CPU's instruction where it has one.
std::uint32_t crc32c(std::span<const std::byte> data, std::uint32_t crc = 0);

// The same from tables alone: what crc32c() runs on CPUs without the instruction, and what tests compare it
// with.
std::uint32_t crc32c_portable(std::span<const std::byte> data, std::uint32_t crc = 0);

}  // namespace fastload

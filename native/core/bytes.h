// Bytes of files, and arithmetic on sizes that came from them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <optional>
#include <span>
#include <type_traits>

namespace fastload {

using Bytes = std::span<const std::byte>;

// The little-endian integer at `data`, at any alignment (crc32c.cpp asserts that the machine is
// little-endian).
template <typename T>
T load(const std::byte* data) {
  static_assert(std::is_trivially_copyable_v<T>);
  T value;
  std::memcpy(&value, data, sizeof value);
  return value;
}

template <typename T>
void store(std::byte* data, T value) {
  static_assert(std::is_trivially_copyable_v<T>);
  std::memcpy(data, &value, sizeof value);
}

// `value` rounded up to a multiple of `alignment`, a power of two. The caller knows that it fits.
constexpr std::uint64_t align_up(std::uint64_t value, std::uint64_t alignment) {
  return (value + alignment - 1) & ~(alignment - 1);
}

// a x b, or nothing where 64 bits do not hold it.
constexpr std::optional<std::uint64_t> multiply(std::uint64_t a, std::uint64_t b) {
  if (a != 0 && b > std::numeric_limits<std::uint64_t>::max() / a) return std::nullopt;
  return a * b;
}

}  // namespace fastload

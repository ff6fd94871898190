// The keyed permutation that orders an epoch: a Feistel network with cycle-walking, version 2 of the order
// (docs/architecture.md). fastload/sampling/permutation.py gives the same numbers.
#pragma once

#include <array>
#include <cstdint>
#include <span>

namespace fastload {

// SplitMix64's finaliser.
constexpr std::uint64_t mix64(std::uint64_t z) {
  z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
  z = (z ^ z >> 27) * 0x94D049BB133111EBu;
  return z ^ z >> 31;
}

// The key of a sequence of words (0 of the empty one), with one word more.
constexpr std::uint64_t absorb(std::uint64_t key, std::uint64_t word) {
  return mix64((key ^ word) + 0x9E3779B97F4A7C15u);
}

class Permutation {
 public:
  static constexpr int max_rounds = 48;
  static constexpr std::uint64_t max_count = std::uint64_t{1} << 62;

  // Throws Error (usage) unless 1 <= count <= max_count.
  Permutation(std::uint64_t count, std::uint64_t key);

  // Where `positions` go: each must be in [0, count), or Error (usage) names the first that is not. `records`
  // is as long as `positions`, and may be the same memory.
  void apply(std::span<const std::int64_t> positions, std::span<std::int64_t> records) const;

  std::uint64_t count() const { return count_; }

 private:
  std::uint64_t count_;
  std::array<std::uint32_t, max_rounds> keys_;  // as many as there are rounds
};

// Where each of `positions` goes in the permutation of its own count and key. All are of one length; a
// position that is not in [0, count) is an Error (usage).
void permute_each(std::span<const std::int64_t> positions, std::span<const std::int64_t> counts,
                  std::span<const std::uint64_t> keys, std::span<std::int64_t> records);

}  // namespace fastload

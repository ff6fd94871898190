// The keyed permutation that orders an epoch: a Feistel network with cycle-walking, version 1 of the order
// (docs/architecture.md). fastload/sampling/permutation.py gives the same numbers.
#pragma once

#include <array>
#include <cstdint>
#include <span>

namespace fastload {

class Permutation {
 public:
  static constexpr int rounds = 8;
  static constexpr std::uint64_t max_count = std::uint64_t{1} << 62;

  // Throws Error (usage) unless 1 <= count <= max_count.
  Permutation(std::uint64_t count, std::uint64_t seed, std::uint64_t epoch);

  // Where `positions` go: each must be in [0, count), or Error (usage) names the first that is not. `records`
  // is as long as `positions`, and may be the same memory.
  void apply(std::span<const std::int64_t> positions, std::span<std::int64_t> records) const;

  std::uint64_t count() const { return count_; }

 private:
  std::uint64_t count_;
  std::uint32_t right_bits_;
  std::uint64_t left_mask_;
  std::uint64_t right_mask_;
  std::array<std::uint32_t, rounds> keys_{};
};

}  // namespace fastload

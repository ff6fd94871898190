#include "core/permutation.h"

#include <algorithm>
#include <bit>
#include <string>

#include "core/error.h"

namespace fastload {
namespace {

constexpr std::uint64_t golden = 0x9E3779B97F4A7C15u;
constexpr int rounds_at_once = 4;

struct Network {
  const std::uint32_t* keys;
  int rounds;
  std::uint32_t left_mask;
  std::uint32_t right_mask;
};

constexpr std::size_t lanes = 512;  // the halves of a block stay in the first-level cache

[[gnu::always_inline]] inline std::uint32_t scramble(std::uint32_t h) {
  h ^= h >> 16;
  h *= 0x7FEB352Du;
  h ^= h >> 15;
  h *= 0x846CA68Bu;
  return h ^ h >> 16;
}

[[gnu::always_inline]] inline void four_rounds(const Network& network, const std::uint32_t* keys,
                                               std::uint32_t& left, std::uint32_t& right) {
  for (int round = 0; round < rounds_at_once; round += 2) {
    left ^= scramble(right ^ keys[round]) & network.left_mask;
    right ^= scramble(left ^ keys[round + 1]) & network.right_mask;
  }
}

// Every lane is worked on, also those not in use: whole vectors are cheaper than a tail.
[[gnu::always_inline]] inline void run_rounds(const Network& network, std::uint32_t* left,
                                              std::uint32_t* right) {
  for (int round = 0; round < network.rounds; round += rounds_at_once) {
    for (std::size_t i = 0; i < lanes; ++i) {
      std::uint32_t l = left[i];
      std::uint32_t r = right[i];
      four_rounds(network, network.keys + round, l, r);
      left[i] = l;
      right[i] = r;
    }
  }
}

using Rounds = void (*)(const Network&, std::uint32_t*, std::uint32_t*);

void rounds_baseline(const Network& network, std::uint32_t* left, std::uint32_t* right) {
  run_rounds(network, left, right);
}

#if defined(__x86_64__)
__attribute__((target("avx2"))) void rounds_avx2(const Network& network, std::uint32_t* left,
                                                 std::uint32_t* right) {
  run_rounds(network, left, right);
}
const Rounds rounds_of_cpu = __builtin_cpu_supports("avx2") ? rounds_avx2 : rounds_baseline;
#else
constexpr Rounds rounds_of_cpu = rounds_baseline;
#endif

[[noreturn]] void refuse(std::int64_t position, std::uint64_t count) {
  throw Error(ErrorKind::usage,
              "position " + std::to_string(position) + " is outside 0 to " + std::to_string(count - 1));
}

}  // namespace

Permutation::Permutation(std::uint64_t count, std::uint64_t key) : count_(count) {
  if (count < 1 || count > max_count) {
    throw Error(ErrorKind::usage, "a permutation of " + std::to_string(count) + " records", {},
                "give a count from 1 to 2^62");
  }
  const int bits = std::max(2, static_cast<int>(std::bit_width(count - 1)));
  right_bits_ = static_cast<std::uint32_t>(bits / 2);
  left_mask_ = (1u << (bits - bits / 2)) - 1;
  right_mask_ = (1u << (bits / 2)) - 1;
  rounds_ = std::max(8, 4 * ((24 + bits - 1) / bits));  // few bits mix slowly
  std::uint64_t state = absorb(key, count);
  for (int round = 0; round < rounds_; round += 2) {
    state += golden;
    const std::uint64_t mixed = mix64(state);
    keys_[round] = static_cast<std::uint32_t>(mixed >> 32);
    keys_[round + 1] = static_cast<std::uint32_t>(mixed);
  }
}

void Permutation::apply(std::span<const std::int64_t> positions, std::span<std::int64_t> records) const {
  const Network network{keys_.data(), rounds_, left_mask_, right_mask_};
  alignas(64) std::array<std::uint32_t, lanes> left{};
  alignas(64) std::array<std::uint32_t, lanes> right{};
  std::array<std::size_t, lanes> target{};
  std::size_t active = 0;
  std::size_t next = 0;
  // Lanes whose value is in range leave and the next positions take their places, so that the walking of a
  // few does not leave the rest of the block idle.
  while (active != 0 || next != positions.size()) {
    for (; active != lanes && next != positions.size(); ++active, ++next) {
      const auto position = static_cast<std::uint64_t>(positions[next]);
      if (position >= count_) refuse(positions[next], count_);
      left[active] = static_cast<std::uint32_t>(position >> right_bits_);
      right[active] = static_cast<std::uint32_t>(position) & right_mask_;
      target[active] = next;
    }
    rounds_of_cpu(network, left.data(), right.data());
    std::size_t kept = 0;
    for (std::size_t i = 0; i < active; ++i) {
      const std::uint64_t value = std::uint64_t{left[i]} << right_bits_ | right[i];
      if (value < count_) {
        records[target[i]] = static_cast<std::int64_t>(value);
      } else {
        left[kept] = left[i];
        right[kept] = right[i];
        target[kept++] = target[i];
      }
    }
    active = kept;
  }
}

std::uint64_t Permutation::operator()(std::uint64_t position) const {
  const Network network{keys_.data(), rounds_, left_mask_, right_mask_};
  do {
    auto left = static_cast<std::uint32_t>(position >> right_bits_);
    std::uint32_t right = static_cast<std::uint32_t>(position) & right_mask_;
    for (int round = 0; round < rounds_; round += rounds_at_once) {
      four_rounds(network, network.keys + round, left, right);
    }
    position = std::uint64_t{left} << right_bits_ | right;
  } while (position >= count_);
  return position;
}

void permute_each(std::span<const std::int64_t> positions, std::span<const std::int64_t> counts,
                  std::span<const std::uint64_t> keys, std::span<std::int64_t> records) {
  for (std::size_t i = 0; i < positions.size(); ++i) {
    if (positions[i] < 0 || positions[i] >= counts[i]) {
      refuse(positions[i], static_cast<std::uint64_t>(counts[i]));
    }
    const Permutation permutation(static_cast<std::uint64_t>(counts[i]), keys[i]);
    records[i] = static_cast<std::int64_t>(permutation(static_cast<std::uint64_t>(positions[i])));
  }
}

}  // namespace fastload

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
  int rounds;  // a multiple of 4
  int right_bits;
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

// A block of lanes of which each has a permutation of its own, all over as many bits.
struct Lanes {
  static constexpr std::size_t size = 256;
  alignas(64) std::array<std::uint32_t, size> left{};
  alignas(64) std::array<std::uint32_t, size> right{};
  alignas(64) std::array<std::uint64_t, size> state{};
  alignas(64) std::array<std::uint32_t, size> upper{};
  alignas(64) std::array<std::uint32_t, size> lower{};
};

[[gnu::always_inline]] inline void run_rounds_of_each(const Network& network, Lanes& lanes_of_each) {
  for (int round = 0; round < network.rounds; round += 2) {
    const std::uint64_t step = golden * (static_cast<std::uint64_t>(round) / 2 + 1);
    for (std::size_t i = 0; i < Lanes::size; ++i) {
      const std::uint64_t mixed = mix64(lanes_of_each.state[i] + step);
      lanes_of_each.upper[i] = static_cast<std::uint32_t>(mixed >> 32);
      lanes_of_each.lower[i] = static_cast<std::uint32_t>(mixed);
    }
    for (std::size_t i = 0; i < Lanes::size; ++i) {
      const std::uint32_t l = lanes_of_each.left[i] ^
                              (scramble(lanes_of_each.right[i] ^ lanes_of_each.upper[i]) & network.left_mask);
      lanes_of_each.left[i] = l;
      lanes_of_each.right[i] ^= scramble(l ^ lanes_of_each.lower[i]) & network.right_mask;
    }
  }
}

using Rounds = void (*)(const Network&, std::uint32_t*, std::uint32_t*);
using RoundsOfEach = void (*)(const Network&, Lanes&);

void rounds_baseline(const Network& network, std::uint32_t* left, std::uint32_t* right) {
  run_rounds(network, left, right);
}
void rounds_of_each_baseline(const Network& network, Lanes& lanes_of_each) {
  run_rounds_of_each(network, lanes_of_each);
}

#if defined(__x86_64__)
__attribute__((target("avx2"))) void rounds_avx2(const Network& network, std::uint32_t* left,
                                                 std::uint32_t* right) {
  run_rounds(network, left, right);
}
__attribute__((target("avx2"))) void rounds_of_each_avx2(const Network& network, Lanes& lanes_of_each) {
  run_rounds_of_each(network, lanes_of_each);
}
const bool avx2 = __builtin_cpu_supports("avx2");
const Rounds rounds_of_cpu = avx2 ? rounds_avx2 : rounds_baseline;
const RoundsOfEach rounds_of_each_of_cpu = avx2 ? rounds_of_each_avx2 : rounds_of_each_baseline;
#else
constexpr Rounds rounds_of_cpu = rounds_baseline;
constexpr RoundsOfEach rounds_of_each_of_cpu = rounds_of_each_baseline;
#endif

int bits_of(std::uint64_t count) { return std::max(2, static_cast<int>(std::bit_width(count - 1))); }

Network network_of(int bits, const std::uint32_t* keys) {
  const int right_bits = bits / 2;
  const int rounds = std::max(8, 4 * ((24 + bits - 1) / bits));  // few bits mix slowly
  return {keys, rounds, right_bits, (1u << (bits - right_bits)) - 1, (1u << right_bits) - 1};
}

[[noreturn]] void refuse(std::int64_t position, std::uint64_t count) {
  throw Error(ErrorKind::usage,
              "position " + std::to_string(position) + " is not in [0, " + std::to_string(count) + ")");
}

}  // namespace

Permutation::Permutation(std::uint64_t count, std::uint64_t key) : count_(count) {
  if (count < 1 || count > max_count) {
    throw Error(ErrorKind::usage, "a permutation of " + std::to_string(count) + " records", {},
                "give a count from 1 to 2^62");
  }
  std::uint64_t state = absorb(key, count);
  for (int round = 0; round < network_of(bits_of(count), nullptr).rounds; round += 2) {
    state += golden;
    const std::uint64_t mixed = mix64(state);
    keys_[round] = static_cast<std::uint32_t>(mixed >> 32);
    keys_[round + 1] = static_cast<std::uint32_t>(mixed);
  }
}

void Permutation::apply(std::span<const std::int64_t> positions, std::span<std::int64_t> records) const {
  const Network network = network_of(bits_of(count_), keys_.data());
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
      left[active] = static_cast<std::uint32_t>(position >> network.right_bits);
      right[active] = static_cast<std::uint32_t>(position) & network.right_mask;
      target[active] = next;
    }
    rounds_of_cpu(network, left.data(), right.data());
    std::size_t kept = 0;
    for (std::size_t i = 0; i < active; ++i) {
      const std::uint64_t value = std::uint64_t{left[i]} << network.right_bits | right[i];
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

void permute_each(std::span<const std::int64_t> positions, std::span<const std::int64_t> counts,
                  std::span<const std::uint64_t> keys, std::span<std::int64_t> records) {
  Lanes block;
  std::array<std::size_t, Lanes::size> target{};
  std::size_t active = 0;
  std::size_t next = 0;
  int bits = 0;
  while (active != 0 || next != positions.size()) {
    // As above; but a lane with another number of bits waits until the block is empty.
    for (; active != Lanes::size && next != positions.size(); ++active, ++next) {
      const auto position = static_cast<std::uint64_t>(positions[next]);
      const auto count = static_cast<std::uint64_t>(counts[next]);
      if (count > Permutation::max_count || position >= count) refuse(positions[next], count);
      if (active == 0) bits = bits_of(count);
      if (bits != bits_of(count)) break;
      block.left[active] = static_cast<std::uint32_t>(position >> (bits / 2));
      block.right[active] = static_cast<std::uint32_t>(position & ((1u << (bits / 2)) - 1));
      block.state[active] = absorb(keys[next], count);
      target[active] = next;
    }
    rounds_of_each_of_cpu(network_of(bits, nullptr), block);
    std::size_t kept = 0;
    for (std::size_t i = 0; i < active; ++i) {
      const std::uint64_t value = std::uint64_t{block.left[i]} << (bits / 2) | block.right[i];
      if (value < static_cast<std::uint64_t>(counts[target[i]])) {
        records[target[i]] = static_cast<std::int64_t>(value);
      } else {
        block.left[kept] = block.left[i];
        block.right[kept] = block.right[i];
        block.state[kept] = block.state[i];
        target[kept++] = target[i];
      }
    }
    active = kept;
  }
}

}  // namespace fastload

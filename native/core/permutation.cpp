#include "core/permutation.h"

#include <algorithm>
#include <bit>
#include <string>

#include "core/error.h"

namespace fastload {
namespace {

constexpr std::uint64_t golden = 0x9E3779B97F4A7C15u;

constexpr std::uint64_t mix64(std::uint64_t z) {
  z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
  z = (z ^ z >> 27) * 0x94D049BB133111EBu;
  return z ^ z >> 31;
}

struct Network {
  std::array<std::uint32_t, Permutation::rounds> keys;
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

// Every lane is worked on, also those not in use: whole vectors are cheaper than a tail.
[[gnu::always_inline]] inline void run_rounds(const Network& network, std::uint32_t* left,
                                              std::uint32_t* right) {
  for (std::size_t i = 0; i < lanes; ++i) {
    std::uint32_t l = left[i];
    std::uint32_t r = right[i];
    for (int round = 0; round < Permutation::rounds; round += 2) {
      l ^= scramble(r ^ network.keys[round]) & network.left_mask;
      r ^= scramble(l ^ network.keys[round + 1]) & network.right_mask;
    }
    left[i] = l;
    right[i] = r;
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

}  // namespace

Permutation::Permutation(std::uint64_t count, std::uint64_t seed, std::uint64_t epoch) : count_(count) {
  if (count < 1 || count > max_count) {
    throw Error(ErrorKind::usage, "a permutation of " + std::to_string(count) + " records", {},
                "give a count from 1 to 2^62");
  }
  const std::uint32_t bits = std::max(2, static_cast<int>(std::bit_width(count - 1)));
  right_bits_ = bits / 2;
  left_mask_ = (std::uint64_t{1} << (bits - right_bits_)) - 1;
  right_mask_ = (std::uint64_t{1} << right_bits_) - 1;
  std::uint64_t state = mix64(seed ^ golden * (2 * epoch + 1));
  for (auto& key : keys_) {
    state += golden;
    key = static_cast<std::uint32_t>(mix64(state) >> 32);
  }
}

void Permutation::apply(std::span<const std::int64_t> positions, std::span<std::int64_t> records) const {
  const Network network{keys_, static_cast<std::uint32_t>(left_mask_),
                        static_cast<std::uint32_t>(right_mask_)};
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
      if (position >= count_) {
        throw Error(ErrorKind::usage, "position " + std::to_string(positions[next]) + " is outside 0 to " +
                                          std::to_string(count_ - 1));
      }
      left[active] = static_cast<std::uint32_t>(position >> right_bits_);
      right[active] = static_cast<std::uint32_t>(position & right_mask_);
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

}  // namespace fastload

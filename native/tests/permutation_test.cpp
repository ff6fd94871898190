// The permutation: a straightforward rendering of its specification, bijectivity, and misuse.
#include "core/permutation.h"

#include <algorithm>
#include <bit>
#include <chrono>
#include <numeric>
#include <random>
#include <vector>

#include "tests/check.h"

using fastload::absorb;
using fastload::ErrorKind;
using fastload::Permutation;
using fastload::permute_each;

namespace {

std::uint64_t mix(std::uint64_t z) {
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  return z ^ (z >> 31);
}

// One position at a time, word for word as the specification has it.
std::uint64_t reference(std::uint64_t x, std::uint64_t count, std::uint64_t seed, std::uint64_t epoch) {
  constexpr std::uint64_t golden = 0x9E3779B97F4A7C15u;
  const int bits = std::max(2, static_cast<int>(std::bit_width(count - 1)));
  const int right_bits = bits / 2;
  const std::uint64_t left_mask = (1ull << (bits - right_bits)) - 1;
  const std::uint64_t right_mask = (1ull << right_bits) - 1;
  const int rounds = bits < 12 ? 4 * ((24 + bits - 1) / bits) : 8;
  do {
    std::uint64_t state = 0;
    for (const std::uint64_t word : {seed, epoch, count}) state = mix((state ^ word) + golden);
    std::uint64_t left = x >> right_bits;
    std::uint64_t right = x & right_mask;
    for (int i = 0; i < rounds; ++i) {
      const std::uint64_t mixed = mix(state + golden * (static_cast<std::uint64_t>(i) / 2 + 1));
      const auto key = static_cast<std::uint32_t>(i % 2 == 0 ? mixed >> 32 : mixed);
      std::uint32_t h = static_cast<std::uint32_t>(i % 2 == 0 ? right : left) ^ key;
      h ^= h >> 16;
      h *= 0x7FEB352Du;
      h ^= h >> 15;
      h *= 0x846CA68Bu;
      h ^= h >> 16;
      (i % 2 == 0 ? left : right) ^= h & (i % 2 == 0 ? left_mask : right_mask);
    }
    x = left << right_bits | right;
  } while (x >= count);
  return x;
}

std::uint64_t key_of(std::uint64_t seed, std::uint64_t epoch) { return absorb(absorb(0, seed), epoch); }

std::vector<std::int64_t> permute(std::vector<std::int64_t> positions, std::uint64_t count,
                                  std::uint64_t seed, std::uint64_t epoch) {
  Permutation(count, key_of(seed, epoch)).apply(positions, positions);
  return positions;
}

void matches_specification() {
  std::mt19937_64 random(3);
  for (std::uint64_t count : {1ull, 2ull, 3ull, 4ull, 5ull, 7ull, 8ull, 9ull, 1000ull, 1025ull, 65536ull,
                              65537ull, 1ull << 33, (1ull << 40) + 12345, (1ull << 61) + 1, 1ull << 62}) {
    std::vector<std::int64_t> positions(1500);
    for (auto& position : positions) position = static_cast<std::int64_t>(random() % count);
    const std::uint64_t seed = random();
    const std::uint64_t epoch = random() % 1000;
    const auto records = permute(positions, count, seed, epoch);
    for (std::size_t i = 0; i < positions.size(); ++i) {
      CHECK(static_cast<std::uint64_t>(records[i]) ==
            reference(static_cast<std::uint64_t>(positions[i]), count, seed, epoch));
    }
  }
}

void is_a_permutation() {
  for (std::int64_t count = 1; count < 700; count += count < 70 ? 1 : 53) {
    std::vector<std::int64_t> positions(static_cast<std::size_t>(count));
    std::iota(positions.begin(), positions.end(), 0);
    auto records = permute(positions, static_cast<std::uint64_t>(count), 11, 2);
    std::sort(records.begin(), records.end());
    CHECK(records == positions);
  }
  std::vector<std::int64_t> positions(1000);
  std::iota(positions.begin(), positions.end(), 0);
  CHECK(permute(positions, 1000, 1, 0) != permute(positions, 1000, 1, 1));
  CHECK(permute(positions, 1000, 1, 0) != permute(positions, 1000, 2, 0));
  CHECK(permute({}, 5, 0, 0).empty());
}

void each_is_its_own() {
  std::mt19937_64 random(5);
  std::vector<std::int64_t> positions(2000), counts(2000), records(2000);
  std::vector<std::uint64_t> keys(2000);
  for (std::size_t i = 0; i < positions.size(); ++i) {
    // Runs of equal counts, as blocks have, and all sizes.
    const std::uint64_t count = i % 700 < 300 ? 1025 : 1 + (random() >> (random() % 62 + 2));
    counts[i] = static_cast<std::int64_t>(count);
    positions[i] = static_cast<std::int64_t>(random() % count);
    keys[i] = key_of(i, random() % 3);
  }
  permute_each(positions, counts, keys, records);
  for (std::size_t i = 0; i < positions.size(); ++i) {
    std::int64_t expected = 0;
    Permutation(static_cast<std::uint64_t>(counts[i]), keys[i]).apply({&positions[i], 1}, {&expected, 1});
    CHECK(records[i] == expected);
  }
  counts[1234] = positions[1234];
  CHECK_THROWS(ErrorKind::usage, permute_each(positions, counts, keys, records));
}

void misuse() {
  CHECK_THROWS(ErrorKind::usage, permute({0}, 0, 0, 0));
  CHECK_THROWS(ErrorKind::usage, permute({0}, (1ull << 62) + 1, 0, 0));
  CHECK_THROWS(ErrorKind::usage, permute({0, 5}, 5, 0, 0));
  CHECK_THROWS(ErrorKind::usage, permute({-1}, 5, 0, 0));
}

void report_speed() {
  std::vector<std::int64_t> positions(1'000'000);
  std::iota(positions.begin(), positions.end(), 0);
  const auto begin = std::chrono::steady_clock::now();
  const auto records = permute(positions, 1'000'000, 0, 0);
  const std::chrono::duration<double, std::milli> spent = std::chrono::steady_clock::now() - begin;
  std::printf("10^6 positions in %.1f ms (%lld)\n", spent.count(), static_cast<long long>(records[7]));
}

}  // namespace

int main() {
  matches_specification();
  is_a_permutation();
  each_is_its_own();
  misuse();
  report_speed();
  return fastload::test::finish("permutation");
}

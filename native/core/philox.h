// Philox4x32-10, the counter-based generator of Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as
// easy as 1, 2, 3" (SC 2011). docs/architecture.md fixes how fastload keys it; fastload/transforms/random.py
// is the same in Python.
#pragma once

#include <array>
#include <cstdint>

namespace fastload {

inline std::array<std::uint32_t, 4> philox4x32(std::array<std::uint32_t, 4> counter,
                                               std::array<std::uint32_t, 2> key) {
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t product0 = std::uint64_t{0xD2511F53u} * counter[0];
    const std::uint64_t product1 = std::uint64_t{0xCD9E8D57u} * counter[2];
    counter = {static_cast<std::uint32_t>(product1 >> 32) ^ counter[1] ^ key[0],
               static_cast<std::uint32_t>(product1),
               static_cast<std::uint32_t>(product0 >> 32) ^ counter[3] ^ key[1],
               static_cast<std::uint32_t>(product0)};
    key[0] += 0x9E3779B9u;
    key[1] += 0xBB67AE85u;
  }
  return counter;
}

// The draws of one transform on one sample. `group` numbers the transform group (entry of Dataset.transform)
// and `op` the operation in it, each below 256.
class Draws {
 public:
  Draws(std::uint64_t seed, std::uint32_t epoch, std::uint64_t position, std::uint32_t group,
        std::uint32_t op)
      : key_{static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32)},
        counter_{static_cast<std::uint32_t>(position), static_cast<std::uint32_t>(position >> 32), epoch,
                 (group & 0xFFu) << 24 | (op & 0xFFu) << 16} {}

  // Draw number i (below 131,072): uniform in [0, 1), a multiple of 2^-53.
  double uniform(std::uint32_t i) const {
    auto counter = counter_;
    counter[3] |= (i >> 1) & 0xFFFFu;
    const auto block = philox4x32(counter, key_);
    const std::uint32_t high = block[(i & 1) * 2] >> 5;
    const std::uint32_t low = block[(i & 1) * 2 + 1] >> 6;
    return (high * 67108864.0 + low) * (1.0 / 9007199254740992.0);
  }

  // Draw number i as an integer in [0, n): floor(uniform * n).
  std::int64_t integer(std::uint32_t i, std::int64_t n) const {
    return static_cast<std::int64_t>(uniform(i) * static_cast<double>(n));
  }

 private:
  std::array<std::uint32_t, 2> key_;
  std::array<std::uint32_t, 4> counter_;
};

}  // namespace fastload

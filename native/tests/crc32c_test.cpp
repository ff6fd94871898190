// CRC-32C: known answers, and the CPU's path against the tables at every length and alignment that matters.
#include "core/crc32c.h"

#include <cstring>
#include <random>
#include <string_view>
#include <vector>

#include "tests/check.h"

using fastload::crc32c;
using fastload::crc32c_portable;

namespace {

std::span<const std::byte> bytes_of(std::string_view text) { return std::as_bytes(std::span(text)); }

void known_answers() {
  CHECK(crc32c({}) == 0);
  CHECK(crc32c(bytes_of("123456789")) == 0xE3069283u);
  // RFC 3720, appendix B.4.
  const std::vector<std::byte> zeros(32);
  const std::vector<std::byte> ones(32, std::byte{0xFF});
  CHECK(crc32c(zeros) == 0x8A9136AAu);
  CHECK(crc32c(ones) == 0x62A8AB43u);
  std::vector<std::byte> ascending(32);
  for (std::size_t i = 0; i < 32; ++i) ascending[i] = static_cast<std::byte>(i);
  CHECK(crc32c(ascending) == 0x46DD794Eu);
  CHECK(crc32c_portable(ascending) == 0x46DD794Eu);
}

void paths_agree() {
  std::mt19937_64 random(7);
  std::vector<std::byte> data(100'000);
  for (auto& byte : data) byte = static_cast<std::byte>(random());
  const std::span<const std::byte> all(data);
  for (std::size_t length = 0; length < 900; ++length) {
    const auto part = all.subspan(length % 9, length);
    CHECK(crc32c(part) == crc32c_portable(part));
  }
  for (std::size_t length : {3071, 3072, 3073, 12287, 12288, 12289, 24576, 65535, 65536, 99990}) {
    for (std::size_t start : {0, 1, 7}) {
      const auto part = all.subspan(start, length);
      CHECK(crc32c(part) == crc32c_portable(part));
      const std::size_t cut = random() % length;
      CHECK(crc32c(part.subspan(cut), crc32c(part.first(cut))) == crc32c(part));
    }
  }
}

}  // namespace

int main() {
  known_answers();
  paths_agree();
  return fastload::test::finish("crc32c");
}

// SHA-256 (FIPS 180-4). Only for small inputs: directories of shards, once when one is opened or made.
#pragma once

#include <array>
#include <cstdint>

#include "core/bytes.h"

namespace fastload {

std::array<std::uint8_t, 32> sha256(Bytes data);

// docs/format.md section 2.4: the first 16 bytes of the directory's SHA-256.
std::array<std::uint8_t, 16> content_checksum(Bytes directory);

}  // namespace fastload

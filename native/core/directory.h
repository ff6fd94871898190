// The frame of a shard: header, trailer and directory, checked against each other, the file and the schema.
#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "core/bytes.h"
#include "core/shard.h"

namespace fastload {

// The byte structures of docs/format.md section 2.
namespace layout {
inline constexpr std::uint64_t shard_magic = 0x0A1A0A0D'534C4689u;  // "\x89FLS\r\n\x1a\n"
inline constexpr std::uint64_t table_magic = 0x0A1A0A0D'544C4689u;  // "\x89FLT\r\n\x1a\n"
inline constexpr std::uint32_t trailer_magic = 0x45534C46u;         // "FLSE"
inline constexpr std::uint16_t major = 0;
inline constexpr std::uint16_t minor = 1;
inline constexpr std::uint64_t header_bytes = 64;
inline constexpr std::uint64_t trailer_bytes = 64;
inline constexpr std::uint64_t directory_head_bytes = 16;
inline constexpr std::uint64_t entry_bytes = 64;
inline constexpr std::uint64_t section_alignment = 4096;
inline constexpr std::uint64_t directory_alignment = 8;
inline constexpr std::uint32_t block_bytes = 65536;
inline constexpr std::uint64_t max_dictionary_bytes = std::uint64_t{1} << 20;
inline constexpr std::uint64_t max_value_bytes = std::uint64_t{1} << 40;
inline constexpr std::uint32_t no_field = 0xFFFFFFFFu;
}  // namespace layout

enum class Kind : std::uint32_t {
  heap = 1,
  column = 2,
  offsets = 3,
  validity = 4,
  dictionary = 5,
  value_checksums = 6,
  block_checksums = 7,
};

constexpr bool has_field(Kind kind) {
  return kind == Kind::column || kind == Kind::validity || kind == Kind::dictionary;
}
constexpr bool has_blocks(Kind kind) { return has_field(kind) || kind == Kind::offsets; }

struct Section {
  Kind kind{};
  std::uint32_t field = layout::no_field;
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
  std::uint32_t crc = 0;
  std::uint64_t block_crcs = 0;  // offset in the block checksums section

  std::uint64_t blocks() const {
    return has_blocks(kind) ? bytes / layout::block_bytes + (bytes % layout::block_bytes != 0) : 0;
  }
};

// What to do about an error of this kind in a file of a dataset; may be empty.
std::string hint_of(ErrorKind kind);

// Throws the errors of one file.
struct FileErrors {
  std::string path;
  std::string shard;

  [[noreturn]] void fail(ErrorKind kind, const std::string& message, std::int64_t offset = -1,
                         const std::string& field = {}) const {
    throw Error(kind, message, {path, shard, -1, field, offset}, hint_of(kind));
  }
};

struct Directory {
  std::uint64_t records = 0;
  Section heap;
  Section offsets;
  Section value_checksums;
  Section block_checksums;
  // By field; of kind 0 where the field has none.
  std::vector<Section> columns;
  std::vector<Section> validities;
  std::vector<Section> dictionaries;
};

// Reads and checks the frame of the shard whose bytes are `file`. Everything in the result lies in the file,
// and every length is what docs/format.md says. Throws Error as section 4 there asks.
Directory read_directory(Bytes file, const SchemaSpec& schema,
                         const std::optional<ShardExpectation>& expected, const FileErrors& errors);

}  // namespace fastload

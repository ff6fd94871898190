// One shard, mapped and checked as docs/format.md says. Thread-safe: any thread may read any record.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/bytes.h"
#include "core/error.h"
#include "core/mapped_file.h"
#include "core/verified_bits.h"

namespace fastload {

enum class Verify { first, always, never };
enum class Codec { raw, zstd };

// What the core needs to know of a schema field; fastload/schema.py derives it.
struct FieldSpec {
  std::string name;
  bool heap = false;
  bool nullable = false;
  Codec codec = Codec::raw;
  std::uint64_t item_bytes = 0;  // columns
  std::uint64_t alignment = 1;   // heap: 1 or 8
};

struct SchemaSpec {
  std::vector<FieldSpec> fields;
  std::string json;  // canonical JSON, compared with each shard's
};

// What the shard table says of a shard; a shard that differs is corrupt.
struct ShardExpectation {
  std::uint64_t records = 0;
  std::uint64_t file_bytes = 0;
  std::uint64_t index_bytes = 0;
  std::array<std::uint8_t, 16> checksum{};
};

// A column as it lies in memory, so that records are copied without a call for each. Valid as long as its
// shard.
struct ColumnView {
  const std::byte* data = nullptr;  // null: ask Shard::item for every record (Verify::always)
  std::uint64_t item_bytes = 0;
  std::uint32_t block_shift = 16;  // log2 of the bytes of a block
  // Bit b % 64 of word b / 64 is set once block b is verified; null where nothing is to be verified.
  const std::atomic<std::uint64_t>* verified = nullptr;

  // Whether `data + record * item_bytes` may be used; where it may not, Shard::item verifies it first.
  bool ready(std::uint64_t record) const {
    if (verified == nullptr || item_bytes == 0) return true;
    const std::uint64_t begin = record * item_bytes;
    const std::uint64_t last = (begin + item_bytes - 1) >> block_shift;
    for (std::uint64_t block = begin >> block_shift; block <= last; ++block) {
      if (!VerifiedBits::test(verified, block)) return false;
    }
    return true;
  }
};

struct Directory;
class ZstdDictionary;

class Shard {
 public:
  // Maps and checks everything but values and blocks. `expected` empty: trust the shard alone (repair).
  // `first_record` is the dataset's number of this shard's record 0, for errors. `verified` carries what was
  // verified over from an earlier opening of the same shard (see verified_bits()).
  static std::shared_ptr<Shard> open(const std::string& path, std::shared_ptr<const SchemaSpec> schema,
                                     const std::optional<ShardExpectation>& expected, Verify verify,
                                     std::uint64_t first_record = 0,
                                     std::shared_ptr<VerifiedBits> verified = nullptr);
  ~Shard();
  Shard(const Shard&) = delete;
  Shard& operator=(const Shard&) = delete;

  std::uint64_t records() const { return records_; }
  const std::string& path() const { return path_; }
  const SchemaSpec& schema() const { return *schema_; }
  const std::shared_ptr<VerifiedBits>& verified_bits() const { return verified_; }

  // Records are numbered within the shard. Records and fields are checked: Error (usage).
  // Whether the record has a value; always true for fields that are not nullable.
  bool valid(std::uint32_t field, std::uint64_t record) const;
  // The item of a column field; verified as asked. Zeros for a null.
  Bytes item(std::uint32_t field, std::uint64_t record) const;
  // The stored bytes of a heap value (before decompression); verified as asked. Empty for a null.
  Bytes stored(std::uint32_t field, std::uint64_t record) const;
  // Length after decompression, without decompressing; capped. 0 for a null.
  std::uint64_t value_bytes(std::uint32_t field, std::uint64_t record) const;
  // The value after decompression: the mapping itself for raw and columns, else `scratch`, which it may grow.
  Bytes value(std::uint32_t field, std::uint64_t record, std::vector<std::byte>& scratch) const;
  // Writes the value into `output`, which has value_bytes() bytes: zstd decompresses straight into it.
  void value_into(std::uint32_t field, std::uint64_t record, std::span<std::byte> output) const;
  // The column for bulk copies; a view without data where every access is to be verified.
  ColumnView column(std::uint32_t field) const;
  // Hints the kernel that the record will be read soon. Never fails.
  void will_need(std::uint64_t record, std::span<const std::uint32_t> fields) const;
  // The error of something wrong with a value of this shard, with the shard's name and the dataset's record.
  Error value_error(ErrorKind kind, const std::string& message, std::uint32_t field,
                    std::uint64_t record) const;

 private:
  // A section with a CRC for each block. `bits` is null unless blocks are verified the first time only.
  struct Blocks {
    const std::byte* data = nullptr;
    std::uint64_t bytes = 0;
    std::uint64_t offset = 0;         // in the file
    const std::byte* crcs = nullptr;  // u32 each
    VerifiedBits::Word* bits = nullptr;
  };
  struct Field {
    bool heap = false;
    bool nullable = false;
    bool zstd = false;
    std::uint64_t item_bytes = 0;
    std::uint64_t alignment = 1;
    std::uint64_t heap_index = 0;  // v of docs/format.md
    Blocks column;
    Blocks validity;
    Blocks dictionary;
  };
  struct LazyDictionary;

  static constexpr std::uint32_t block_shift = 16;

  Shard() = default;
  void attach(const Directory& directory, std::shared_ptr<VerifiedBits> verified);
  void attach_bits(std::shared_ptr<VerifiedBits> verified);
  void check_heap_end() const;
  const Field& field_at(std::uint32_t field, std::uint64_t record) const {
    if (field >= fields_.size() || record >= records_) [[unlikely]]
      throw_range(field, record);
    return fields_[field];
  }
  // Verifies the blocks that [begin, begin + bytes) of the section touches, as asked.
  void ensure(const Blocks& blocks, std::uint64_t begin, std::uint64_t bytes, std::uint32_t field,
              std::uint64_t record) const {
    if (verify_ == Verify::never || bytes == 0) return;
    const std::uint64_t last = (begin + bytes - 1) >> block_shift;
    for (std::uint64_t block = begin >> block_shift; block <= last; ++block) {
      if (blocks.bits == nullptr || !VerifiedBits::test(blocks.bits, block)) [[unlikely]] {
        verify_block(blocks, block, field, record);
      }
    }
  }
  void verify_block(const Blocks& blocks, std::uint64_t block, std::uint32_t field,
                    std::uint64_t record) const;
  void verify_value(Bytes value, std::uint64_t number, std::uint32_t field, std::uint64_t record) const;
  bool is_valid(const Field& spec, std::uint32_t field, std::uint64_t record) const {
    if (!spec.nullable) return true;
    ensure(spec.validity, record >> 3, 1, field, record);
    return (std::to_integer<unsigned>(spec.validity.data[record >> 3]) >> (record & 7) & 1) != 0;
  }
  const ZstdDictionary* dictionary(std::uint32_t field, std::uint64_t record) const;
  void decompress(Bytes frame, std::span<std::byte> output, std::uint32_t field, std::uint64_t record) const;
  std::uint64_t content_bytes(Bytes frame, std::uint32_t field, std::uint64_t record) const;
  [[noreturn]] void throw_range(std::uint32_t field, std::uint64_t record) const;
  [[noreturn]] void throw_not_column(std::uint32_t field) const;
  [[noreturn]] void fail(ErrorKind kind, const std::string& message, std::uint32_t field,
                         std::uint64_t record, std::uint64_t offset) const;

  MappedFile file_;
  std::string path_;
  std::shared_ptr<const SchemaSpec> schema_;
  Verify verify_ = Verify::first;
  std::uint64_t first_record_ = 0;
  std::uint64_t records_ = 0;
  std::vector<Field> fields_;
  std::uint64_t heap_fields_ = 0;
  Bytes heap_;
  std::uint64_t heap_offset_ = 0;
  Blocks offsets_;
  const std::byte* value_crcs_ = nullptr;
  VerifiedBits::Word* value_bits_ = nullptr;
  std::shared_ptr<VerifiedBits> verified_;
  std::vector<std::unique_ptr<LazyDictionary>> dictionaries_;  // by field; empty where there is none
};

inline Bytes Shard::item(std::uint32_t field, std::uint64_t record) const {
  const Field& spec = field_at(field, record);
  if (spec.heap) [[unlikely]]
    throw_not_column(field);
  const std::uint64_t begin = record * spec.item_bytes;
  ensure(spec.column, begin, spec.item_bytes, field, record);
  return {spec.column.data + begin, static_cast<std::size_t>(spec.item_bytes)};
}

inline bool Shard::valid(std::uint32_t field, std::uint64_t record) const {
  return is_valid(field_at(field, record), field, record);
}

}  // namespace fastload

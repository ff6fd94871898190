// One shard, mapped and checked as docs/format.md says. Thread-safe: any thread may read any record.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/error.h"

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

using Bytes = std::span<const std::byte>;

// A column as it lies in memory, so that records are copied without a call for each. Valid as long as its shard.
struct ColumnView {
  const std::byte* data = nullptr;  // null: ask Shard::item for every record (Verify::always, no mapping)
  std::uint64_t item_bytes = 0;
  std::uint32_t block_shift = 16;  // log2 of the bytes of a block
  // Bit b % 64 of word b / 64 is set once block b is verified; null where nothing is to be verified.
  const std::atomic<std::uint64_t>* verified = nullptr;

  // Whether `data + record * item_bytes` may be used; where it may not, Shard::item verifies it first.
  bool ready(std::uint64_t record) const {
    if (verified == nullptr) return true;
    const std::uint64_t begin = record * item_bytes;
    const std::uint64_t last = (begin + (item_bytes == 0 ? 0 : item_bytes - 1)) >> block_shift;
    for (std::uint64_t block = begin >> block_shift; block <= last; ++block) {
      if ((verified[block >> 6].load(std::memory_order_acquire) >> (block & 63) & 1) == 0) return false;
    }
    return true;
  }
};

class Shard {
 public:
  // Maps and checks everything but values and blocks. `expected` empty: trust the shard alone (repair).
  static std::shared_ptr<Shard> open(const std::string& path, std::shared_ptr<const SchemaSpec> schema,
                                     const std::optional<ShardExpectation>& expected, Verify verify);
  virtual ~Shard() = default;

  virtual std::uint64_t records() const = 0;
  // Record indices are within the shard, and are checked. `first_record` of errors: the dataset's number of
  // this shard's record 0 is not known here; the caller adds it (see Dataset::locate).
  virtual bool valid(std::uint32_t field, std::uint64_t record) = 0;
  // The item of a column field; verified as asked.
  virtual Bytes item(std::uint32_t field, std::uint64_t record) = 0;
  // The stored bytes of a heap value (before decompression); verified as asked. Empty for a null.
  virtual Bytes stored(std::uint32_t field, std::uint64_t record) = 0;
  // Length after decompression, without decompressing; capped.
  virtual std::uint64_t value_bytes(std::uint32_t field, std::uint64_t record) = 0;
  // The value after decompression: the mapping itself for raw, else `scratch`, which it may grow.
  virtual Bytes value(std::uint32_t field, std::uint64_t record, std::vector<std::byte>& scratch) = 0;
  // Writes the value into `output`, which has value_bytes() bytes: zstd decompresses straight into it.
  virtual void value_into(std::uint32_t field, std::uint64_t record, std::span<std::byte> output) {
    std::vector<std::byte> scratch;
    const Bytes bytes = value(field, record, scratch);
    if (bytes.size() != output.size()) throw Error(ErrorKind::corruption, "a value's length changed while it was read");
    if (!bytes.empty()) std::memcpy(output.data(), bytes.data(), bytes.size());
  }
  // The column for bulk copies; a view without data where there is none.
  virtual ColumnView column(std::uint32_t) { return {}; }
  // The file, for messages.
  virtual std::string path() const { return {}; }
  // Hints the kernel that the record will be read soon.
  virtual void will_need(std::uint64_t record, std::span<const std::uint32_t> fields) = 0;
};

}  // namespace fastload

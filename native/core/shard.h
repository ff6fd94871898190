// One shard, mapped and checked as docs/format.md says. Thread-safe: any thread may read any record.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
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
  // Hints the kernel that the record will be read soon.
  virtual void will_need(std::uint64_t record, std::span<const std::uint32_t> fields) = 0;
};

}  // namespace fastload

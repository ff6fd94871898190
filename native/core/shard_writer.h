// Writes one shard, front to back (docs/format.md section 2): the same bytes as
// fastload/format/shard_writer.py.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/bytes.h"
#include "core/directory.h"
#include "core/shard.h"
#include "core/spill.h"
#include "core/zstd_codec.h"

namespace fastload {

struct ShardWriterOptions {
  std::array<std::byte, 16> identity{};  // random; the caller draws it
  int level = 3;                         // of zstd
  // One for each field, or none at all; an empty one means none. Only zstd fields may have one.
  std::vector<std::vector<std::byte>> dictionaries;
  std::uint64_t spill_bytes = std::uint64_t{64} << 20;  // what columns, ends and checksums take in memory
  std::string spill_folder;                             // where they go beyond that
};

// Not thread-safe. Once an error other than `record` was thrown, the file is lost and everything throws.
class ShardWriter {
 public:
  using Sink = std::function<void(Bytes)>;

  // `sink` takes the pieces of the file, in order.
  ShardWriter(std::shared_ptr<const SchemaSpec> schema, Sink sink, ShardWriterOptions options);

  // Adds a record: a payload for each field, in schema order; nothing for a null. Throws Error (record),
  // before anything is stored, where a payload cannot be its field's; write where a temporary file fails;
  // what the sink throws.
  void append(std::span<const std::optional<Bytes>> payloads);

  // Writes the rest of the file, and returns what the shard table needs to know.
  ShardExpectation finish();

  std::uint64_t records() const { return records_; }
  // About how large the file would be if it ended now.
  std::uint64_t bytes_written() const;

 private:
  struct Field {
    std::size_t column = 0;    // section of spill_
    std::size_t validity = 0;  // the same, where nullable
    std::uint8_t bits = 0;     // the last, incomplete byte of the validity
    std::unique_ptr<ZstdCompressor> compressor;
  };

  void check(std::span<const std::optional<Bytes>> payloads) const;
  void append_column(std::size_t field, const std::optional<Bytes>& payload);
  void append_validity(Field& field, bool valid);
  void append_value(std::size_t field, const std::optional<Bytes>& payload);
  void put(Bytes data);
  void flush();
  void out(Bytes data);
  void pad(std::uint64_t alignment);
  void write_section(Kind kind, std::uint32_t field, const std::function<void(const Sink&)>& pieces);
  void write_spilled(Kind kind, std::uint32_t field, std::size_t section);
  void write_index();
  ShardExpectation write_end(std::uint64_t index_offset);

  std::shared_ptr<const SchemaSpec> schema_;
  Sink sink_;
  ShardWriterOptions options_;
  Spill spill_;
  std::vector<Field> fields_;
  std::size_t ends_;
  std::size_t value_crcs_;
  std::uint64_t heap_fields_ = 0;
  std::uint64_t column_bytes_ = 0;  // of one record
  std::uint64_t records_ = 0;
  std::uint64_t position_ = 0;
  std::uint64_t heap_end_ = 0;
  std::uint32_t heap_crc_ = 0;
  std::vector<std::byte> buffer_;  // the heap's last bytes, not yet given to the sink
  std::vector<Section> sections_;
  std::vector<std::uint32_t> block_crcs_;
  bool usable_ = true;
};

}  // namespace fastload

// A split of a dataset: its shard table and its lazily opened shards. Thread-safe.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "core/shard.h"

namespace fastload {

class Dataset {
 public:
  // `table` holds the whole shard table file, already checked by the caller against the manifest's CRC; it is
  // checked structurally here. At most `max_open_shards` stay mapped (least recently used goes first).
  static std::shared_ptr<Dataset> open(const std::string& folder, std::shared_ptr<const SchemaSpec> schema,
                                       Bytes table, std::shared_ptr<const void> table_owner, Verify verify,
                                       std::size_t max_open_shards);
  virtual ~Dataset() = default;

  virtual const SchemaSpec& schema() const = 0;
  virtual std::uint64_t records() const = 0;
  virtual std::uint64_t shards() const = 0;
  virtual std::uint64_t open_shards() const = 0;

  struct Place {
    std::shared_ptr<Shard> shard;
    std::uint64_t record;   // within the shard
    std::uint64_t shard_number;
  };
  // Opens the shard when needed. Throws Error (usage) when the record is out of range.
  virtual Place locate(std::uint64_t record) = 0;
};

}  // namespace fastload

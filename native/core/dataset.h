// A split of a dataset: its shard table and its lazily opened shards. Thread-safe.
#pragma once

#include <array>
#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <utility>

#include "core/shard.h"

namespace fastload {

class Dataset {
 public:
  // `table` holds the whole shard table file, already checked by the caller against the manifest's CRC; it is
  // checked structurally here. `table_owner` keeps its memory. At most `max_open_shards` stay mapped (least
  // recently used goes first), besides those that somebody holds.
  static std::shared_ptr<Dataset> open(const std::string& folder, std::shared_ptr<const SchemaSpec> schema,
                                       Bytes table, std::shared_ptr<const void> table_owner, Verify verify,
                                       std::size_t max_open_shards);

  const SchemaSpec& schema() const { return *schema_; }
  const std::string& folder() const { return folder_; }
  std::uint64_t records() const { return records_; }
  std::uint64_t shards() const { return shards_; }
  std::uint64_t open_shards() const;

  struct Place {
    std::shared_ptr<Shard> shard;
    std::uint64_t record;  // within the shard
    std::uint64_t shard_number;
  };
  // Opens the shard when needed. Throws Error (usage) when the record is out of range. Takes a lock: threads
  // that read many records use a DatasetCursor.
  Place locate(std::uint64_t record);

  // The shard of this number (which is below shards()), opened when needed.
  std::shared_ptr<Shard> shard(std::uint64_t number);
  // The number of the shard that holds the record. Throws Error (usage) when the record is out of range.
  std::uint64_t shard_of(std::uint64_t record) const {
    if (record >= records_) [[unlikely]]
      throw_range(record);
    // Shards are mostly filled alike, so the first one's count mostly leads to the right one.
    const std::uint64_t guess = record / records_guess_;
    if (guess < shards_ && start(guess) <= record && record < start(guess + 1)) return guess;
    return search(record);
  }
  // The number of records before shard `number`, which may be shards() as well.
  std::uint64_t start(std::uint64_t number) const { return load<std::uint64_t>(starts_ + 8 * number); }

 private:
  using Recent = std::list<std::pair<std::uint64_t, std::shared_ptr<Shard>>>;
  struct Slot {
    std::weak_ptr<Shard> shard;  // finds it again as long as anybody holds it
    std::shared_ptr<VerifiedBits> verified;
    Recent::iterator place;  // in recent_, where `recent`
    bool recent = false;
  };

  Dataset() = default;
  void read_table(Bytes table);
  std::shared_ptr<Shard> open_shard(std::uint64_t number, std::shared_ptr<VerifiedBits> verified) const;
  void touch(Slot& slot, std::uint64_t number, const std::shared_ptr<Shard>& shard, Recent& evicted);
  std::uint64_t search(std::uint64_t record) const;
  std::string name(std::uint64_t number) const;
  [[noreturn]] void throw_range(std::uint64_t record) const;

  std::string folder_;
  std::shared_ptr<const SchemaSpec> schema_;
  std::shared_ptr<const void> table_owner_;
  Verify verify_ = Verify::first;
  std::size_t max_open_shards_ = 0;
  std::uint64_t records_ = 0;
  std::uint64_t shards_ = 0;
  std::uint64_t records_guess_ = 1;
  const std::byte* starts_ = nullptr;
  const std::byte* file_bytes_ = nullptr;
  const std::byte* index_bytes_ = nullptr;
  const std::byte* checksums_ = nullptr;
  const std::byte* name_ends_ = nullptr;
  const std::byte* names_ = nullptr;

  mutable std::mutex mutex_;
  std::unordered_map<std::uint64_t, Slot> slots_;  // of shards that were ever opened
  Recent recent_;                                  // most recently used first
};

// One thread's way into a dataset: it keeps the shards that it met lately, so that finding a record takes no
// lock. Not thread-safe. A shard that it keeps stays mapped: forget() lets them go.
class DatasetCursor {
 public:
  explicit DatasetCursor(std::shared_ptr<Dataset> dataset) : dataset_(std::move(dataset)) {}

  struct Place {
    Shard* shard;  // until the next call; hold(shard_number) keeps it longer
    std::uint64_t record;
    std::uint64_t shard_number;
  };
  // As Dataset::locate.
  Place locate(std::uint64_t record) {
    const std::uint64_t number = dataset_->shard_of(record);
    return {hold(number).get(), record - dataset_->start(number), number};
  }
  const std::shared_ptr<Shard>& hold(std::uint64_t number) {
    Entry& entry = entries_[number % entries_.size()];
    if (entry.shard == nullptr || entry.number != number) [[unlikely]] {
      entry.shard = dataset_->shard(number);
      entry.number = number;
    }
    return entry.shard;
  }
  void forget() { entries_.fill({}); }
  Dataset& dataset() const { return *dataset_; }

 private:
  struct Entry {
    std::uint64_t number = 0;
    std::shared_ptr<Shard> shard;
  };
  std::shared_ptr<Dataset> dataset_;
  std::array<Entry, 256> entries_;
};

}  // namespace fastload

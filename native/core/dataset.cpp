#include "core/dataset.h"

#include <algorithm>
#include <iterator>
#include <string_view>

#include "core/crc32c.h"
#include "core/directory.h"

namespace fastload {
namespace {

constexpr std::uint64_t table_header_bytes = 64;
constexpr std::uint64_t array_alignment = 64;
constexpr std::uint64_t max_records = (std::uint64_t{1} << 63) - 1;
constexpr std::size_t max_name_bytes = 255;

// Whether `text` is UTF-8 as RFC 3629 has it (no surrogates, nothing longer than needed).
bool is_utf8(std::string_view text) {
  for (std::size_t i = 0; i < text.size();) {
    const auto lead = static_cast<unsigned char>(text[i]);
    const std::size_t length = lead < 0x80   ? 1
                               : lead < 0xC2 ? 0
                               : lead < 0xE0 ? 2
                               : lead < 0xF0 ? 3
                               : lead < 0xF5 ? 4
                                             : 0;
    if (length == 0 || length > text.size() - i) return false;
    std::uint32_t point = length == 1 ? lead : lead & (0x7Fu >> length);
    for (std::size_t k = 1; k < length; ++k) {
      const auto next = static_cast<unsigned char>(text[i + k]);
      if ((next & 0xC0) != 0x80) return false;
      point = point << 6 | (next & 0x3Fu);
    }
    if ((length == 3 && point < 0x800) || (length == 4 && (point < 0x10000 || point > 0x10FFFF)) ||
        (point >= 0xD800 && point < 0xE000)) {
      return false;
    }
    i += length;
  }
  return true;
}

bool is_plain_name(std::string_view name) {
  return !name.empty() && name.size() <= max_name_bytes && name != "." && name != ".." &&
         name.find_first_of(std::string_view("/\\\0", 3)) == std::string_view::npos && is_utf8(name);
}

bool never_decreases(const std::byte* values, std::uint64_t count) {
  for (std::uint64_t i = 1; i < count; ++i) {
    if (load<std::uint64_t>(values + 8 * i) < load<std::uint64_t>(values + 8 * (i - 1))) return false;
  }
  return true;
}

}  // namespace

std::shared_ptr<Dataset> Dataset::open(const std::string& folder, std::shared_ptr<const SchemaSpec> schema,
                                       Bytes table, std::shared_ptr<const void> table_owner, Verify verify,
                                       std::size_t max_open_shards) {
  const std::shared_ptr<Dataset> dataset(new Dataset);
  dataset->folder_ = folder;
  dataset->schema_ = std::move(schema);
  dataset->table_owner_ = std::move(table_owner);
  dataset->verify_ = verify;
  dataset->max_open_shards_ = std::max<std::size_t>(max_open_shards, 1);
  dataset->read_table(table);
  return dataset;
}

void Dataset::read_table(Bytes table) {
  const FileErrors errors{folder_, {}};
  if (table.size() < table_header_bytes) errors.fail(ErrorKind::format, "too few bytes for a shard table");
  const std::byte* data = table.data();
  if (load<std::uint64_t>(data) != layout::table_magic) {
    errors.fail(ErrorKind::format, "not a fastload shard table: its first bytes are wrong");
  }
  if (crc32c(table.first(60)) != load<std::uint32_t>(data + 60)) {
    errors.fail(ErrorKind::corruption, "the CRC of the shard table's header differs", 0);
  }
  if (load<std::uint16_t>(data + 8) != layout::major) {
    errors.fail(ErrorKind::unsupported,
                "the shard table has a format version that this fastload does not know", 8);
  }
  const auto shards = load<std::uint64_t>(data + 16);
  const auto names_bytes = load<std::uint64_t>(data + 24);
  // Each shard takes 48 bytes, so these bounds leave no room for overflow below.
  if (load<std::uint32_t>(data + 12) != table_header_bytes ||
      load<std::uint64_t>(data + 32) != table.size() || shards > table.size() / 48 ||
      names_bytes > table.size() || load<std::uint64_t>(data + 40) != 0 ||
      load<std::uint64_t>(data + 48) != 0) {
    errors.fail(ErrorKind::format, "the shard table's header contradicts its length or the format", 16);
  }
  std::uint64_t position = table_header_bytes;
  const auto take = [&](std::uint64_t bytes) {
    const std::uint64_t begin = align_up(position, array_alignment);
    position = begin + bytes;
    return data + std::min<std::uint64_t>(begin, table.size());
  };
  starts_ = take(8 * (shards + 1));
  file_bytes_ = take(8 * shards);
  index_bytes_ = take(8 * shards);
  checksums_ = take(16 * shards);
  name_ends_ = take(8 * shards);
  names_ = take(names_bytes);
  if (position != table.size()) {
    errors.fail(ErrorKind::format, "the shard table's arrays contradict its length", 32);
  }
  shards_ = shards;
  records_ = start(shards);
  if (start(0) != 0 || records_ > max_records || !never_decreases(starts_, shards + 1)) {
    errors.fail(ErrorKind::format, "the record counts of the shard table contradict each other");
  }
  if (shards != 0 && (load<std::uint64_t>(name_ends_ + 8 * (shards - 1)) != names_bytes ||
                      !never_decreases(name_ends_, shards))) {
    errors.fail(ErrorKind::format, "the names of the shard table contradict each other");
  }
  if (shards != 0) records_guess_ = std::max<std::uint64_t>(start(1), 1);
}

std::string Dataset::name(std::uint64_t number) const {
  const std::uint64_t begin = number == 0 ? 0 : load<std::uint64_t>(name_ends_ + 8 * (number - 1));
  const std::uint64_t end = load<std::uint64_t>(name_ends_ + 8 * number);
  std::string name(reinterpret_cast<const char*>(names_ + begin), static_cast<std::size_t>(end - begin));
  if (!is_plain_name(name)) {
    throw Error(ErrorKind::format,
                "the name of shard " + std::to_string(number) + " is not a plain file name", {folder_},
                "do not trust this dataset");
  }
  return name;
}

std::shared_ptr<Shard> Dataset::open_shard(std::uint64_t number,
                                           std::shared_ptr<VerifiedBits> verified) const {
  ShardExpectation expected;
  expected.records = start(number + 1) - start(number);
  expected.file_bytes = load<std::uint64_t>(file_bytes_ + 8 * number);
  expected.index_bytes = load<std::uint64_t>(index_bytes_ + 8 * number);
  std::memcpy(expected.checksum.data(), checksums_ + 16 * number, expected.checksum.size());
  return Shard::open(folder_ + "/" + name(number), schema_, expected, verify_, start(number),
                     std::move(verified));
}

std::shared_ptr<Shard> Dataset::shard(std::uint64_t number) {
  if (number >= shards_) {
    throw Error(ErrorKind::usage, "shard " + std::to_string(number) + " of " + std::to_string(shards_),
                {folder_});
  }
  std::shared_ptr<VerifiedBits> verified;
  Recent evicted;  // outlives the locks: unmapping takes long enough to keep others waiting
  {
    const std::lock_guard lock(mutex_);
    if (const auto found = slots_.find(number); found != slots_.end()) {
      if (auto shard = found->second.shard.lock()) {
        touch(found->second, number, shard, evicted);
        return shard;
      }
      verified = found->second.verified;
    }
  }
  // Outside the lock: others go on while this one is mapped and checked.
  auto shard = open_shard(number, std::move(verified));
  const std::lock_guard lock(mutex_);
  Slot& slot = slots_[number];
  if (auto other = slot.shard.lock()) {
    shard = std::move(other);  // another thread was quicker
  } else {
    slot.shard = shard;
    slot.verified = shard->verified_bits();
  }
  touch(slot, number, shard, evicted);
  return shard;
}

// Makes the shard the most recently used one, and moves those beyond the limit to `evicted`. The caller holds
// the lock.
void Dataset::touch(Slot& slot, std::uint64_t number, const std::shared_ptr<Shard>& shard, Recent& evicted) {
  if (slot.recent) {
    recent_.splice(recent_.begin(), recent_, slot.place);
    return;
  }
  recent_.emplace_front(number, shard);
  slot.place = recent_.begin();
  slot.recent = true;
  while (recent_.size() > max_open_shards_) {
    slots_.at(recent_.back().first).recent = false;
    evicted.splice(evicted.end(), recent_, std::prev(recent_.end()));
  }
}

Dataset::Place Dataset::locate(std::uint64_t record) {
  const std::uint64_t number = shard_of(record);
  return {shard(number), record - start(number), number};
}

std::uint64_t Dataset::open_shards() const {
  const std::lock_guard lock(mutex_);
  return recent_.size();
}

// The last shard that begins at or before the record; empty shards before it begin there as well.
std::uint64_t Dataset::search(std::uint64_t record) const {
  std::uint64_t low = 0;
  std::uint64_t high = shards_;
  while (high - low > 1) {
    const std::uint64_t middle = low + (high - low) / 2;
    (start(middle) <= record ? low : high) = middle;
  }
  return low;
}

void Dataset::throw_range(std::uint64_t record) const {
  throw Error(ErrorKind::usage, "record " + std::to_string(record) + " of " + std::to_string(records_),
              {folder_});
}

}  // namespace fastload

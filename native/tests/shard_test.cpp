// Opening and reading shards and splits: damage, hostile numbers, how often things are verified, threads.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <thread>

#include "tests/check.h"
#include "tests/fixture.h"

using namespace fastload;
using namespace fastload::test;

namespace {

constexpr std::uint32_t column_x = 0;
constexpr std::uint32_t heap_text = 1;

// Reads everything there is to read.
void read_all(const Shard& shard) {
  std::vector<std::byte> scratch;
  std::vector<std::uint32_t> fields;
  for (std::uint32_t f = 0; f < shard.schema().fields.size(); ++f) fields.push_back(f);
  for (std::uint64_t r = 0; r < shard.records(); ++r) {
    shard.will_need(r, fields);
    for (const std::uint32_t f : fields) {
      shard.valid(f, r);
      shard.value(f, r, scratch);
    }
  }
}

struct Sample {
  Sample() : schema(rich_schema()), records(random_records(*schema, 60, 5)) {
    shard = write_shard(schema, records, rich_options());
  }
  std::string put(Bytes data) const {
    write_file(folder.file("s.shard"), data);
    return folder.file("s.shard");
  }
  std::uint64_t directory() const { return load<std::uint64_t>(shard.file.data() + shard.file.size() - 64); }

  TemporaryFolder folder;
  std::shared_ptr<const SchemaSpec> schema;
  std::vector<Payloads> records;
  WrittenShard shard;
};

// The kind of error of opening and reading, or nothing.
std::optional<ErrorKind> outcome(const Sample& sample, Bytes data,
                                 const std::optional<ShardExpectation>& expected,
                                 Verify verify = Verify::first) {
  const std::string path = sample.put(data);
  try {
    read_all(*Shard::open(path, sample.schema, expected, verify));
  } catch (const Error& error) {
    CHECK(error.where.path == sample.folder.path());
    CHECK(error.where.shard == "s.shard");
    return error.kind;
  }
  return std::nullopt;
}

void flipped_bits() {
  const Sample sample;
  const auto& file = sample.shard.file;
  CHECK(!outcome(sample, file, sample.shard.expectation));
  std::mt19937_64 random(9);
  std::size_t unseen = 0;
  for (int i = 0; i < 1500; ++i) {
    Data damaged = file;
    const std::size_t spot = i < 64    ? static_cast<std::size_t>(i)
                             : i < 500 ? sample.directory() + random() % (file.size() - sample.directory())
                                       : random() % file.size();
    damaged[spot] ^= static_cast<std::byte>(1u << random() % 8);
    const auto kind = outcome(sample, damaged, sample.shard.expectation);
    if (!kind) ++unseen;  // in the gaps between sections
    CHECK(!kind || *kind == ErrorKind::corruption || *kind == ErrorKind::format);
    CHECK(kind || spot < sample.directory());
    outcome(sample, damaged, std::nullopt, Verify::never);  // may see nothing, but must not crash
  }
  CHECK(unseen < 1300);
  for (const std::size_t bytes :
       {std::size_t{0}, std::size_t{1}, std::size_t{127}, std::size_t{128}, file.size() - 1}) {
    CHECK(outcome(sample, Bytes(file).first(bytes), sample.shard.expectation) == ErrorKind::corruption);
    CHECK(outcome(sample, Bytes(file).first(bytes), std::nullopt) == ErrorKind::format);
  }
}

// Every number of header, directory and trailer made absurd, with the CRCs made to fit.
void hostile_numbers() {
  const Sample sample;
  const auto& file = sample.shard.file;
  const std::uint64_t entries_end = file.size() - 64 - sample.schema->json.size();
  std::vector<std::uint64_t> spots;
  for (std::uint64_t spot = 8; spot < 60; spot += 4) spots.push_back(spot);
  for (std::uint64_t spot = sample.directory(); spot < entries_end; spot += 4) spots.push_back(spot);
  for (std::uint64_t spot = file.size() - 64; spot < file.size() - 16; spot += 4) spots.push_back(spot);
  std::size_t refused = 0;
  for (const std::uint64_t spot : spots) {
    for (int shift = 0; shift < 64; shift += 9) {
      for (const std::uint64_t value :
           {std::uint64_t{1} << shift, (std::uint64_t{1} << shift) - 1, ~std::uint64_t{0}}) {
        for (const std::size_t width : {4, 8}) {
          Data changed = file;
          std::memcpy(changed.data() + spot, &value, width);
          const ShardExpectation expectation = reseal(changed);
          const auto kind =
              outcome(sample, changed, shift % 2 == 0 ? std::optional(expectation) : std::nullopt);
          CHECK(!kind || *kind == ErrorKind::format || *kind == ErrorKind::unsupported ||
                *kind == ErrorKind::corruption);
          refused += kind.has_value();
        }
      }
    }
  }
  std::printf("%zu of the hostile files refused\n", refused);
  CHECK(refused > spots.size() * 30);
}

void one_wrong_thing() {
  const Sample sample;
  const auto change = [&](std::uint64_t spot, auto value) {
    Data changed = sample.shard.file;
    store(changed.data() + spot, value);
    reseal(changed);
    return outcome(sample, changed, std::nullopt);
  };
  const std::uint64_t end = sample.shard.file.size();
  CHECK(change(0, std::uint8_t{'x'}) == ErrorKind::format);
  CHECK(change(8, std::uint16_t{1}) == ErrorKind::unsupported);
  CHECK(change(10, std::uint16_t{9}) == std::nullopt);  // a newer minor version is read
  CHECK(change(16, std::uint64_t{2}) == ErrorKind::unsupported);
  CHECK(change(24, std::uint64_t{2}) == std::nullopt);  // an optional feature is ignored
  CHECK(change(48, std::uint32_t{1}) == ErrorKind::format);
  CHECK(change(end - 4, std::uint8_t{'x'}) == ErrorKind::format);
  CHECK(change(end - 20, std::uint16_t{1}) == ErrorKind::unsupported);
  CHECK(change(end - 16, std::uint64_t{0}) == ErrorKind::format);
  CHECK(change(end - 48, std::uint64_t{61}) == ErrorKind::format);
  CHECK(change(sample.directory() + 8, std::uint64_t{1}) == ErrorKind::format);
  // The table and the dataset's schema against a good shard.
  auto expected = sample.shard.expectation;
  expected.checksum[3] ^= 1;
  CHECK(outcome(sample, sample.shard.file, expected) == ErrorKind::corruption);
  expected = sample.shard.expectation;
  expected.records += 1;
  CHECK(outcome(sample, sample.shard.file, expected) == ErrorKind::corruption);
  const auto other = schema_of({column("z", 37)});
  CHECK_THROWS(ErrorKind::corruption,
               Shard::open(sample.put(sample.shard.file), other, std::nullopt, Verify::first));
  CHECK_THROWS(ErrorKind::shard_not_found,
               Shard::open(sample.folder.file("none.shard"), sample.schema, std::nullopt, Verify::first));
  CHECK_THROWS(ErrorKind::format,
               Shard::open(sample.folder.path(), sample.schema, std::nullopt, Verify::first));
}

void poke(const std::string& path, std::uint64_t offset, std::byte value) {
  const int file = ::open(path.c_str(), O_WRONLY | O_CLOEXEC);
  CHECK(::pwrite(file, &value, 1, static_cast<off_t>(offset)) == 1);
  ::close(file);
}

// Bytes that change under the mapping show when they are looked at.
void verify_modes() {
  const Sample sample;
  const std::string path = sample.put(sample.shard.file);
  const auto open = [&](Verify verify) {
    return Shard::open(path, sample.schema, sample.shard.expectation, verify, 1000);
  };
  const auto first = open(Verify::first);
  const auto always = open(Verify::always);
  const auto never = open(Verify::never);
  const std::uint64_t record = 20;
  for (const std::uint32_t field : {column_x, heap_text}) {
    for (const auto& shard : {first, always, never}) shard->stored(field, record);
  }
  const Bytes file_start = first->item(column_x, 0);
  const Bytes text = first->stored(heap_text, record);
  CHECK(text.size() > 1);
  // Where the heap's value lies in the file: the heap begins the file's second page.
  const std::uint64_t text_offset =
      layout::section_alignment +
      static_cast<std::uint64_t>(text.data() - first->stored(heap_text, 0).data());
  poke(path, text_offset, text[0] ^ std::byte{1});
  first->stored(heap_text, record);
  never->stored(heap_text, record);
  const Error error = CHECK_THROWS(ErrorKind::corruption, always->stored(heap_text, record));
  CHECK(error.where.record == 1000 + static_cast<std::int64_t>(record));
  CHECK(error.where.field == "text");
  CHECK(error.where.offset == static_cast<std::int64_t>(text_offset));
  CHECK(error.hint.find("fastload verify") != std::string::npos);
  CHECK_THROWS(ErrorKind::corruption, open(Verify::first)->stored(heap_text, record));
  // What was verified before counts for a shard that is opened again.
  Shard::open(path, sample.schema, sample.shard.expectation, Verify::first, 0, first->verified_bits())
      ->stored(heap_text, record);

  CHECK(first->column(column_x).ready(record));
  CHECK(!open(Verify::first)->column(column_x).ready(record));
  CHECK(never->column(column_x).ready(record));
  CHECK(always->column(column_x).data == nullptr);
  CHECK(first->column(column_x).data == file_start.data());
}

void bad_zstd() {
  const TemporaryFolder folder;
  // The same files but for the codec, which the core takes from the schema it is given.
  const auto raw = schema_of({heap("a")});
  const auto zstd = schema_of({heap("a", Codec::zstd)});
  std::vector<Payloads> records;
  for (const std::initializer_list<int> bytes : {
           std::initializer_list<int>{},                                              // nothing
           {0x50, 0x2A, 0x4D, 0x18, 0, 0, 0, 0},                                      // skippable frame
           {0x28, 0xB5, 0x2F, 0xFD, 0x00, 0x58, 0x01, 0x00, 0x00},                    // no content size
           {0x28, 0xB5, 0x2F, 0xFD, 0xE0, 0, 0, 0, 0, 0, 1, 0, 0, 0x01, 0x00, 0x00},  // claims 1 TiB
           {0x28, 0xB5, 0x2F, 0xFD, 0x20, 0x05, 0x19, 0x00, 0x00, 'a', 'b', 'c'},     // 3 bytes, not 5
       }) {
    Data value;
    for (const int byte : bytes) value.push_back(static_cast<std::byte>(byte));
    records.push_back({value});
  }
  const WrittenShard shard = write_shard(raw, records);
  write_file(folder.file("s.shard"), shard.file);
  const auto opened = Shard::open(folder.file("s.shard"), zstd, std::nullopt, Verify::first);
  std::vector<std::byte> scratch;
  for (std::uint64_t r = 0; r < records.size(); ++r) {
    const Error error = CHECK_THROWS(ErrorKind::decode, opened->value(0, r, scratch));
    CHECK(error.where.record == static_cast<std::int64_t>(r));
  }
  CHECK(scratch.size() < 1000);  // no memory for what a frame only claims
}

struct Split {
  explicit Split(std::vector<std::size_t> counts) : schema(rich_schema()) {
    for (std::size_t i = 0; i < counts.size(); ++i) {
      const auto part = random_records(*schema, counts[i], i);
      const WrittenShard shard = write_shard(schema, part, rich_options());
      entries.push_back({"shard-" + std::to_string(i), shard.expectation});
      write_file(folder.file(entries.back().name), shard.file);
      records.insert(records.end(), part.begin(), part.end());
    }
    table = make_table(entries);
  }
  std::shared_ptr<Dataset> open(std::size_t limit, Verify verify = Verify::first) const {
    return Dataset::open(folder.path(), schema, table, nullptr, verify, limit);
  }

  TemporaryFolder folder;
  std::shared_ptr<const SchemaSpec> schema;
  std::vector<TableEntry> entries;
  std::vector<Payloads> records;
  Data table;
};

void splits() {
  const Split split({3, 0, 5, 1, 0, 0, 4, 0});
  const auto dataset = split.open(2);
  CHECK(dataset->records() == 13);
  CHECK(dataset->shards() == 8);
  CHECK(dataset->open_shards() == 0);
  DatasetCursor cursor(dataset);
  for (std::uint64_t r = 0; r < 13; ++r) {
    const auto place = dataset->locate(r);
    CHECK(same(place.shard->item(column_x, place.record), split.records[r][column_x]));
    const auto near = cursor.locate(r);
    CHECK(near.shard_number == place.shard_number);
    CHECK(near.shard == place.shard.get());  // found again, since somebody holds it
  }
  CHECK(dataset->open_shards() == 2);
  CHECK_THROWS(ErrorKind::usage, dataset->locate(13));
  CHECK_THROWS(ErrorKind::usage, cursor.locate(~std::uint64_t{0}));
  CHECK_THROWS(ErrorKind::usage, dataset->shard(8));
  CHECK(Split({}).open(1)->records() == 0);
  CHECK(Split({0}).open(1)->records() == 0);
}

void bad_tables() {
  Split split({3, 2});
  const auto refuse = [&](ErrorKind kind, const auto& change) {
    const Data good = split.table;
    change(split.table);
    if (split.table.size() >= 64) store(split.table.data() + 60, crc32c(Bytes(split.table).first(60)));
    CHECK_THROWS(kind, split.open(1)->locate(0));
    split.table = good;
  };
  const auto set = [](std::size_t spot, std::uint64_t value) {
    return [=](Data& table) { store(table.data() + spot, value); };
  };
  refuse(ErrorKind::format, [](Data& table) { table.resize(63); });
  refuse(ErrorKind::format, [](Data& table) { table.push_back({}); });
  refuse(ErrorKind::format, set(0, 7));
  refuse(ErrorKind::unsupported, set(8, 1));
  refuse(ErrorKind::format, set(16, 3));
  refuse(ErrorKind::format, set(16, std::uint64_t{1} << 60));
  refuse(ErrorKind::format, set(24, ~std::uint64_t{0}));
  refuse(ErrorKind::format, set(40, 1));
  refuse(ErrorKind::format, set(64, 1));
  refuse(ErrorKind::format, set(72, std::uint64_t{1} << 63));
  refuse(ErrorKind::corruption, set(128, 5));  // another length of the first shard
  Data broken = split.table;
  broken[20] ^= std::byte{1};
  CHECK_THROWS(ErrorKind::corruption, Dataset::open("", split.schema, broken, nullptr, Verify::first, 1));
  for (const std::string name : {"../x", "..", ".", "a/b", "a\\b", "", "\xFF", "\xC0\xAF", "\xED\xA0\x80"}) {
    split.table = make_table({{name, split.entries[0].expectation}});
    CHECK_THROWS(ErrorKind::format, split.open(1)->locate(0));
  }
  split.table = make_table({{"gone-\xC3\xA9", split.entries[0].expectation}});
  CHECK_THROWS(ErrorKind::shard_not_found, split.open(1)->locate(0));
}

// Threads that read the same records, and open and evict the same shards, at once.
void threads() {
  const Split split({300, 200, 100, 400});
  for (const std::size_t limit : {1, 2, 10}) {
    const auto dataset = split.open(limit);
    std::vector<std::thread> running;
    std::atomic<std::size_t> wrong{0};
    for (int t = 0; t < 4; ++t) {
      running.emplace_back([&, t] {
        DatasetCursor cursor(dataset);
        std::vector<std::byte> scratch;
        for (std::uint64_t i = 0; i < split.records.size(); ++i) {
          const std::uint64_t r = t % 2 == 0 ? i : i * 7 % split.records.size();
          if (i % 50 == 0) cursor.forget();
          const auto place = cursor.locate(r);
          for (std::uint32_t f = 0; f < split.schema->fields.size(); ++f) {
            const Bytes value = place.shard->value(f, place.record, scratch);
            if (place.shard->valid(f, place.record) && !same(value, split.records[r][f])) ++wrong;
          }
          dataset->locate(split.records.size() - 1 - r);
        }
      });
    }
    for (auto& thread : running) thread.join();
    CHECK(wrong == 0);
    CHECK(dataset->open_shards() <= limit);
  }
}

}  // namespace

int main() {
  flipped_bits();
  hostile_numbers();
  one_wrong_thing();
  verify_modes();
  bad_zstd();
  splits();
  bad_tables();
  threads();
  return finish("shard: damage, hostile numbers, verification, zstd, splits, tables, threads");
}

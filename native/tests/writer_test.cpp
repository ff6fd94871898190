// Writing shards and reading them back, with and without spilling; misuse; sinks that fail.
#include <algorithm>
#include <cstdio>

#include "tests/check.h"
#include "tests/fixture.h"

using namespace fastload;
using namespace fastload::test;

namespace {

void sha256_vectors() {
  // FIPS 180-4's examples, and lengths around the padding's corners against each other.
  const auto hex = [](const std::string& text) {
    std::string out;
    char digits[3];
    for (const std::uint8_t byte : sha256(to_data(text))) {
      std::snprintf(digits, sizeof digits, "%02x", byte);
      out += digits;
    }
    return out;
  };
  CHECK(hex("") == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  CHECK(hex("abc") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  CHECK(hex("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq") ==
        "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  CHECK(hex(std::string(1'000'000, 'a')) ==
        "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

void check_records(const Shard& shard, const std::vector<Payloads>& records) {
  CHECK(shard.records() == records.size());
  std::vector<std::byte> scratch;
  for (std::uint64_t r = 0; r < records.size(); ++r) {
    for (std::uint32_t f = 0; f < records[r].size(); ++f) {
      const auto& payload = records[r][f];
      const FieldSpec& spec = shard.schema().fields[f];
      CHECK(shard.valid(f, r) == payload.has_value());
      const Bytes value = shard.value(f, r, scratch);
      if (payload) {
        CHECK(same(value, payload));
      } else {
        CHECK(value.size() == spec.item_bytes);
        CHECK(std::all_of(value.begin(), value.end(), [](std::byte byte) { return byte == std::byte{0}; }));
      }
      CHECK(shard.value_bytes(f, r) == value.size());
      if (!spec.heap) CHECK(shard.item(f, r).data() == value.data());
      if (spec.alignment == 8 && payload) CHECK(reinterpret_cast<std::uintptr_t>(value.data()) % 8 == 0);
      Data copy(value.size());
      shard.value_into(f, r, copy);
      CHECK(std::equal(copy.begin(), copy.end(), value.begin(), value.end()));
    }
  }
}

void round_trips() {
  const TemporaryFolder folder;
  const auto schema = rich_schema();
  for (const std::size_t count : {0, 1, 7, 8, 9, 500}) {
    const auto records = random_records(*schema, count, count);
    const WrittenShard written = write_shard(schema, records, rich_options());
    auto spilling = rich_options();
    spilling.spill_bytes = 64;
    CHECK(write_shard(schema, records, spilling).file == written.file);
    CHECK(written.expectation.records == count);
    CHECK(written.expectation.file_bytes == written.file.size());
    write_file(folder.file("s.shard"), written.file);
    for (const Verify verify : {Verify::first, Verify::always, Verify::never}) {
      check_records(*Shard::open(folder.file("s.shard"), schema, written.expectation, verify), records);
      check_records(*Shard::open(folder.file("s.shard"), schema, std::nullopt, verify), records);
    }
  }
}

void large_values() {
  const TemporaryFolder folder;
  const auto schema = schema_of({heap("blob"), column("x", 300'000)});
  std::vector<Payloads> records;
  for (const std::size_t size : {0, 5, 1 << 20, 700'000, 700'000, 3'000'001}) {
    Data blob(size);
    for (std::size_t i = 0; i < size; ++i) blob[i] = static_cast<std::byte>(i * 7 + size);
    records.push_back({std::move(blob), Data(300'000, static_cast<std::byte>(size))});
  }
  auto options = rich_options();
  options.dictionaries.clear();
  options.spill_bytes = 1 << 20;
  const WrittenShard written = write_shard(schema, records, options);
  write_file(folder.file("s.shard"), written.file);
  check_records(*Shard::open(folder.file("s.shard"), schema, written.expectation, Verify::first), records);
}

void misuse() {
  const auto schema = schema_of({column("x", 2), heap("text")});
  std::size_t calls = 0;
  ShardWriter writer(schema, [&](Bytes) { ++calls; }, {});
  const Data two(2);
  const std::vector<std::optional<Bytes>> good{Bytes(two), Bytes(two)};
  const std::vector<std::optional<Bytes>> null{std::nullopt, Bytes(two)};
  const std::vector<std::optional<Bytes>> longer{Bytes(two).first(1), Bytes(two)};
  CHECK_THROWS(ErrorKind::record, (writer.append(null), 0));
  CHECK_THROWS(ErrorKind::record, (writer.append(longer), 0));
  CHECK_THROWS(ErrorKind::record, (writer.append(std::span(good).first(1)), 0));
  writer.append(good);  // what was refused has left no trace
  CHECK(writer.records() == 1);
  CHECK(writer.finish().records == 1);
  CHECK_THROWS(ErrorKind::engine, writer.finish());
  CHECK_THROWS(ErrorKind::engine, (writer.append(good), 0));
  ShardWriterOptions options;
  options.dictionaries = {Data(), Data(9)};
  CHECK_THROWS(ErrorKind::usage, ShardWriter(schema, [](Bytes) {}, options));
}

void failing_sinks() {
  const auto schema = schema_of({column("x", 1000)});
  ShardWriterOptions options;
  options.spill_bytes = 10;
  options.spill_folder = "/nonexistent/folder";
  ShardWriter writer(schema, [](Bytes) {}, options);
  const Data item(1000);
  const std::vector<std::optional<Bytes>> record{Bytes(item)};
  const Error error = CHECK_THROWS(ErrorKind::write, (writer.append(record), 0));
  CHECK(error.where.path == "/nonexistent/folder");
  CHECK_THROWS(ErrorKind::engine, (writer.append(record), 0));

  bool full = false;
  ShardWriter other(schema,
                    [&](Bytes) {
                      if (full) throw Error(ErrorKind::write, "disk full");
                    },
                    {});
  other.append(record);
  full = true;
  CHECK_THROWS(ErrorKind::write, other.finish());
  CHECK_THROWS(ErrorKind::engine, other.finish());
}

}  // namespace

int main() {
  sha256_vectors();
  round_trips();
  large_values();
  misuse();
  failing_sinks();
  return finish("writer: SHA-256, round trips, spilling, misuse, failing sinks");
}

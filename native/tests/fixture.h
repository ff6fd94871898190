// Shards and datasets in a temporary folder, for the native tests.
#pragma once

#include <stdlib.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "core/crc32c.h"
#include "core/dataset.h"
#include "core/sha256.h"
#include "core/shard_writer.h"

namespace fastload::test {

using Data = std::vector<std::byte>;
using Payloads = std::vector<std::optional<Data>>;

class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string name = (std::filesystem::temp_directory_path() / "fastload-test-XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr) throw std::runtime_error("no temporary folder");
    path_ = name;
  }
  ~TemporaryFolder() { std::filesystem::remove_all(path_); }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  const std::string& path() const { return path_; }
  std::string file(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

inline void write_file(const std::string& path, Bytes data) {
  // A new file each time: an older mapping keeps what it has.
  std::filesystem::remove(path);
  std::ofstream file(path, std::ios::binary);
  file.write(reinterpret_cast<const char*>(data.data()), static_cast<std::streamsize>(data.size()));
}

inline Data to_data(const std::string& text) {
  const Bytes bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}

inline FieldSpec column(std::string name, std::uint64_t item_bytes, bool nullable = false) {
  return {std::move(name), false, nullable, Codec::raw, item_bytes, 1};
}
inline FieldSpec heap(std::string name, Codec codec = Codec::raw, bool nullable = false,
                      std::uint64_t alignment = 1) {
  return {std::move(name), true, nullable, codec, 0, alignment};
}

// The core does not read the JSON, but compares it: any text that names the schema will do.
inline std::shared_ptr<const SchemaSpec> schema_of(std::vector<FieldSpec> fields) {
  auto schema = std::make_shared<SchemaSpec>();
  for (const FieldSpec& field : fields) schema->json += field.name + ";";
  schema->fields = std::move(fields);
  return schema;
}

inline std::vector<Payloads> random_records(const SchemaSpec& schema, std::size_t count, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<Payloads> records(count);
  for (Payloads& record : records) {
    for (const FieldSpec& field : schema.fields) {
      if (field.nullable && random() % 3 == 0) {
        record.emplace_back();
        continue;
      }
      Data data(field.heap ? random() % 200 : field.item_bytes);
      const std::uint64_t range = random() % 2 == 0 ? 256 : 2;  // some compress, some do not
      for (auto& byte : data) byte = static_cast<std::byte>(random() % range);
      record.emplace_back(std::move(data));
    }
  }
  return records;
}

struct WrittenShard {
  Data file;
  ShardExpectation expectation;
};

inline WrittenShard write_shard(const std::shared_ptr<const SchemaSpec>& schema,
                                const std::vector<Payloads>& records, ShardWriterOptions options = {}) {
  WrittenShard shard;
  ShardWriter writer(
      schema, [&](Bytes bytes) { shard.file.insert(shard.file.end(), bytes.begin(), bytes.end()); },
      std::move(options));
  for (const Payloads& record : records) {
    std::vector<std::optional<Bytes>> payloads(record.begin(), record.end());
    writer.append(payloads);
  }
  shard.expectation = writer.finish();
  return shard;
}

// Makes the CRCs of header, directory and trailer fit again after a change; the directory must be where the
// trailer says. Returns what a table would say of the shard.
inline ShardExpectation reseal(Data& file) {
  std::byte* trailer = file.data() + file.size() - 64;
  const auto offset = load<std::uint64_t>(trailer);
  const auto bytes = load<std::uint64_t>(trailer + 8);
  ShardExpectation expectation{
      load<std::uint64_t>(trailer + 16), file.size(), file.size() - load<std::uint64_t>(trailer + 32), {}};
  if (offset <= file.size() && bytes <= file.size() - offset) {
    const Bytes directory = Bytes(file).subspan(offset, bytes);
    store(trailer + 40, crc32c(directory));
    expectation.checksum = content_checksum(directory);
  }
  store(file.data() + 60, crc32c(Bytes(file).first(60)));
  store(trailer + 56, crc32c(Bytes(file).subspan(file.size() - 64, 56)));
  return expectation;
}

struct TableEntry {
  std::string name;
  ShardExpectation expectation;
};

inline Data make_table(const std::vector<TableEntry>& entries) {
  Data table(64);
  const auto pad = [&] { table.resize(align_up(table.size(), 64)); };
  const auto add = [&](const auto& value) {
    table.resize(table.size() + sizeof value);
    store(table.data() + table.size() - sizeof value, value);
  };
  std::uint64_t records = 0;
  add(records);
  for (const auto& entry : entries) add(records += entry.expectation.records);
  pad();
  for (const auto& entry : entries) add(entry.expectation.file_bytes);
  pad();
  for (const auto& entry : entries) add(entry.expectation.index_bytes);
  pad();
  for (const auto& entry : entries) add(entry.expectation.checksum);
  pad();
  std::uint64_t names = 0;
  for (const auto& entry : entries) add(names += entry.name.size());
  pad();
  for (const auto& entry : entries) {
    const Data name = to_data(entry.name);
    table.insert(table.end(), name.begin(), name.end());
  }
  store(table.data(), layout::table_magic);
  store(table.data() + 10, layout::minor);
  store(table.data() + 12, std::uint32_t{64});
  store(table.data() + 16, static_cast<std::uint64_t>(entries.size()));
  store(table.data() + 24, names);
  store(table.data() + 32, static_cast<std::uint64_t>(table.size()));
  store(table.data() + 56, crc32c(Bytes(table).subspan(64)));
  store(table.data() + 60, crc32c(Bytes(table).first(60)));
  return table;
}

// Every kind of field.
inline std::shared_ptr<const SchemaSpec> rich_schema() {
  return schema_of({column("x", 37), heap("text"), column("y", 8, true), heap("tokens", Codec::raw, true, 8),
                    heap("packed", Codec::zstd), heap("small", Codec::zstd, true), column("nothing", 0)});
}

inline ShardWriterOptions rich_options() {
  ShardWriterOptions options;
  for (std::size_t i = 0; i < 16; ++i) options.identity[i] = static_cast<std::byte>(i + 1);
  options.dictionaries.resize(7);
  options.dictionaries[5] = to_data("a dictionary of any bytes, longer than eight of them");
  options.spill_folder = std::filesystem::temp_directory_path().string();
  return options;
}

inline bool same(Bytes bytes, const std::optional<Data>& data) {
  return data && std::equal(bytes.begin(), bytes.end(), data->begin(), data->end());
}

}  // namespace fastload::test

// Opens a shard made of the fuzzer's bytes and reads all of it. The first byte chooses the schema, and
// whether the frame is made to fit (CRCs, sizes, schema) so that what lies behind those checks is reached.
#include <algorithm>
#include <array>
#include <cstdlib>
#include <vector>

#include "tests/fixture.h"

namespace {

using namespace fastload;
using namespace fastload::test;

constexpr std::uint64_t most_records = 4096;  // of absurdly many empty ones, only so many are read

std::shared_ptr<const SchemaSpec> schema_number(unsigned number) {
  static const std::array schemas{rich_schema(), schema_of({column("x", 1)}),
                                  schema_of({heap("a", Codec::zstd, true)}),
                                  schema_of({column("x", 0, true), heap("b", Codec::raw, false, 8)})};
  return schemas[number % schemas.size()];
}

// A good shard with the fuzzer's bytes written over it: pairs of a position and a byte.
Data overlay(unsigned number, Bytes changes) {
  static const auto good = [] {
    std::array<Data, 4> files;
    for (unsigned i = 0; i < files.size(); ++i) {
      const auto schema = schema_number(i);
      files[i] = write_shard(schema, random_records(*schema, 20, 1)).file;
    }
    return files;
  }();
  Data file = good[number % good.size()];
  for (; changes.size() >= 4; changes = changes.subspan(4)) {
    const auto code = load<std::uint32_t>(changes.data());
    // Half of the changes go to the frame, where most of the structure is.
    const std::size_t frame = std::min<std::size_t>(file.size(), 64 + 20 * 64);
    const std::size_t spot = (code & 0x800000u) != 0 ? file.size() - 1 - (code & 0xFFFFu) % frame
                                                     : (code & 0x7FFFFFu) % file.size();
    file[spot] = static_cast<std::byte>(code >> 24);
  }
  reseal(file);
  return file;
}

void read_everything(const Shard& shard) {
  std::vector<std::byte> scratch;
  for (std::uint64_t r = 0; r < std::min(shard.records(), most_records); ++r) {
    for (std::uint32_t f = 0; f < shard.schema().fields.size(); ++f) {
      try {
        shard.will_need(r, std::array{f});
        shard.valid(f, r);
        for (const std::byte byte : shard.stored(f, r)) scratch.assign(1, byte);
        if (shard.value_bytes(f, r) < (1u << 20)) shard.value(f, r, scratch);
      } catch (const Error&) {
      }
    }
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const TemporaryFolder folder;
  if (size == 0) return 0;
  const auto schema = schema_number(data[0]);
  const Bytes rest = std::as_bytes(std::span(data, size)).subspan(1);
  const Verify verify = (data[0] & 0x10) != 0 ? Verify::never : Verify::first;
  const std::string path = folder.file("fuzzed.shard");
  write_file(path, (data[0] & 0x80) != 0 ? Data(rest.begin(), rest.end()) : overlay(data[0], rest));
  try {
    read_everything(*Shard::open(path, schema, std::nullopt, verify));
  } catch (const Error&) {
  }
  return 0;
}

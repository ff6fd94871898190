#include "core/directory.h"

#include <algorithm>
#include <string_view>

#include "core/crc32c.h"
#include "core/sha256.h"

namespace fastload {
namespace {

bool all_zero(Bytes bytes) {
  return std::all_of(bytes.begin(), bytes.end(), [](std::byte byte) { return byte == std::byte{0}; });
}

std::string number(std::uint64_t value) { return std::to_string(value); }

std::string name_of(Kind kind) {
  switch (kind) {
    case Kind::heap:
      return "heap";
    case Kind::column:
      return "column";
    case Kind::offsets:
      return "offsets";
    case Kind::validity:
      return "validity";
    case Kind::dictionary:
      return "dictionary";
    case Kind::value_checksums:
      return "value checksums";
    case Kind::block_checksums:
      return "block checksums";
  }
  return "unknown";
}

// The trailer, and what it says of the rest.
struct Trailer {
  std::uint64_t directory_offset;
  std::uint64_t directory_bytes;
  std::uint64_t records;
  std::uint64_t index_offset;
  std::uint32_t directory_crc;
};

class Reader {
 public:
  Reader(Bytes file, const SchemaSpec& schema, const std::optional<ShardExpectation>& expected,
         const FileErrors& errors)
      : file_(file), schema_(schema), expected_(expected), errors_(errors) {}

  Directory read() {
    if (expected_ && expected_->file_bytes != file_.size()) {
      errors_.fail(ErrorKind::corruption, "the shard has " + number(file_.size()) +
                                              " bytes, the shard table says " +
                                              number(expected_->file_bytes));
    }
    if (file_.size() < layout::header_bytes + layout::trailer_bytes) {
      errors_.fail(ErrorKind::format, number(file_.size()) + " bytes are too few for a shard");
    }
    read_header();
    read_trailer();
    const Bytes directory = file_.subspan(trailer_.directory_offset, trailer_.directory_bytes);
    if (crc32c(directory) != trailer_.directory_crc) {
      fail_at(ErrorKind::corruption, "the CRC of the shard's directory differs", trailer_.directory_offset);
    }
    compare_with_table(directory);
    read_sections(directory);
    check_presence();
    check_block_crcs();
    return std::move(result_);
  }

 private:
  [[noreturn]] void fail_at(ErrorKind kind, const std::string& message, std::uint64_t offset,
                            std::uint32_t field = layout::no_field) const {
    errors_.fail(kind, message, static_cast<std::int64_t>(offset),
                 field < schema_.fields.size() ? schema_.fields[field].name : std::string{});
  }

  void check_version(const std::byte* data, std::uint64_t offset) const {
    const auto major = load<std::uint16_t>(data);
    if (major == layout::major) return;
    fail_at(ErrorKind::unsupported,
            "format version " + number(major) + "." + number(load<std::uint16_t>(data + 2)) +
                "; this fastload reads " + number(layout::major) + ".x",
            offset);
  }

  void read_header() const {
    const std::byte* data = file_.data();
    if (load<std::uint64_t>(data) != layout::shard_magic) {
      fail_at(ErrorKind::format, "not a fastload shard: its first bytes are wrong", 0);
    }
    if (crc32c(file_.first(60)) != load<std::uint32_t>(data + 60)) {
      fail_at(ErrorKind::corruption, "the CRC of the shard's header differs", 0);
    }
    check_version(data + 8, 8);
    if (load<std::uint64_t>(data + 16) != 0) {
      fail_at(ErrorKind::unsupported, "the shard requires features that this fastload does not know", 16);
    }
    if (load<std::uint32_t>(data + 12) != layout::header_bytes) {
      fail_at(ErrorKind::format,
              "the header says it has " + number(load<std::uint32_t>(data + 12)) + " bytes", 12);
    }
    if (!all_zero(file_.subspan(48, 12))) fail_at(ErrorKind::format, "reserved bytes are not zero", 48);
  }

  void read_trailer() {
    const std::uint64_t start = file_.size() - layout::trailer_bytes;
    const std::byte* data = file_.data() + start;
    if (load<std::uint32_t>(data + 60) != layout::trailer_magic) {
      fail_at(ErrorKind::format, "the shard's last bytes are wrong: it was cut off, or is no shard",
              start + 60);
    }
    if (crc32c(file_.subspan(start, 56)) != load<std::uint32_t>(data + 56)) {
      fail_at(ErrorKind::corruption, "the CRC of the shard's trailer differs", start);
    }
    check_version(data + 44, start + 44);
    trailer_ = {load<std::uint64_t>(data), load<std::uint64_t>(data + 8), load<std::uint64_t>(data + 16),
                load<std::uint64_t>(data + 32), load<std::uint32_t>(data + 40)};
    if (load<std::uint64_t>(data + 24) != file_.size()) {
      fail_at(ErrorKind::format,
              "the trailer says that the file has " + number(load<std::uint64_t>(data + 24)) +
                  " bytes; it has " + number(file_.size()),
              start + 24);
    }
    if (std::memcmp(data + 48, file_.data() + 32, 8) != 0) {
      fail_at(ErrorKind::format, "header and trailer are of different shards", start + 48);
    }
    if (trailer_.directory_offset % layout::directory_alignment != 0 ||
        trailer_.directory_offset < layout::header_bytes || trailer_.directory_offset > start ||
        trailer_.directory_bytes != start - trailer_.directory_offset ||
        trailer_.directory_bytes < layout::directory_head_bytes) {
      fail_at(ErrorKind::format, "the directory does not lie before the trailer", start);
    }
    if (trailer_.index_offset % layout::section_alignment != 0 ||
        trailer_.index_offset > trailer_.directory_offset) {
      fail_at(ErrorKind::format, "the index does not begin where one can", start + 32);
    }
    if (trailer_.records >> 63 != 0) fail_at(ErrorKind::format, "absurdly many records", start + 16);
    result_.records = trailer_.records;
  }

  void compare_with_table(Bytes directory) const {
    if (!expected_) return;
    if (expected_->records != trailer_.records ||
        expected_->index_bytes != file_.size() - trailer_.index_offset ||
        content_checksum(directory) != expected_->checksum) {
      errors_.fail(ErrorKind::corruption, "the shard is not the one that the shard table describes");
    }
  }

  void read_sections(Bytes directory) {
    const std::uint64_t count = load<std::uint32_t>(directory.data());
    const std::uint64_t schema_bytes = load<std::uint32_t>(directory.data() + 4);
    const std::uint64_t sections_end = layout::directory_head_bytes + count * layout::entry_bytes;
    if (sections_end + schema_bytes != directory.size()) {
      fail_at(ErrorKind::format, "the directory's counts contradict its length", trailer_.directory_offset);
    }
    if (load<std::uint64_t>(directory.data() + 8) != 0) {
      fail_at(ErrorKind::format, "reserved bytes are not zero", trailer_.directory_offset + 8);
    }
    const auto* json = reinterpret_cast<const char*>(directory.data() + sections_end);
    if (std::string_view(json, schema_bytes) != schema_.json) {
      fail_at(ErrorKind::corruption, "the shard's schema differs from the dataset's",
              trailer_.directory_offset + sections_end);
    }
    result_.columns.resize(schema_.fields.size());
    result_.validities.resize(schema_.fields.size());
    result_.dictionaries.resize(schema_.fields.size());
    std::uint64_t end = layout::header_bytes;
    for (std::uint64_t i = 0; i < count; ++i) {
      const std::uint64_t position = layout::directory_head_bytes + i * layout::entry_bytes;
      const Section section = read_section(directory.data() + position, trailer_.directory_offset + position);
      const bool before_index = section.kind == Kind::heap || section.kind == Kind::column;
      const std::uint64_t limit = before_index ? trailer_.index_offset : trailer_.directory_offset;
      if (section.offset < end || section.offset > limit || section.bytes > limit - section.offset ||
          (!before_index && section.offset < trailer_.index_offset)) {
        fail_at(ErrorKind::format,
                "the " + name_of(section.kind) + " section overlaps another, or its place is wrong",
                trailer_.directory_offset + position + 8, section.field);
      }
      end = section.offset + section.bytes;
    }
    if (align_up(end, layout::directory_alignment) != trailer_.directory_offset) {
      fail_at(ErrorKind::format, "the directory is not behind the last section", trailer_.directory_offset);
    }
  }

  // Checks an entry but for its place and for the presence of block CRCs, and puts it where it belongs.
  Section read_section(const std::byte* data, std::uint64_t offset) {
    Section section;
    const auto kind = load<std::uint32_t>(data);
    section.kind = Kind{kind};
    section.field = load<std::uint32_t>(data + 4);
    section.offset = load<std::uint64_t>(data + 8);
    section.bytes = load<std::uint64_t>(data + 16);
    section.crc = load<std::uint32_t>(data + 28);
    section.block_crcs = load<std::uint64_t>(data + 32);
    if (kind < 1 || kind > 7) fail_at(ErrorKind::format, "section of unknown kind " + number(kind), offset);
    if (has_field(section.kind) ? section.field >= schema_.fields.size()
                                : section.field != layout::no_field) {
      fail_at(ErrorKind::format,
              "a " + name_of(section.kind) + " section names field " + number(section.field), offset + 4);
    }
    if (load<std::uint32_t>(data + 24) != (has_blocks(section.kind) ? layout::block_bytes : 0)) {
      fail_at(ErrorKind::format,
              "a " + name_of(section.kind) + " section has blocks of " +
                  number(load<std::uint32_t>(data + 24)) + " bytes",
              offset + 24, section.field);
    }
    if (section.blocks() == 0 && section.block_crcs != 0) {
      fail_at(ErrorKind::format, "a " + name_of(section.kind) + " section without blocks has block checksums",
              offset + 32, section.field);
    }
    if (!all_zero({data + 40, 24})) fail_at(ErrorKind::format, "reserved bytes are not zero", offset + 40);
    if (section.offset % layout::section_alignment != 0) {
      fail_at(ErrorKind::format, "the " + name_of(section.kind) + " section is not aligned", offset + 8,
              section.field);
    }
    Section& slot = slot_of(section);
    if (slot.kind != Kind{}) {
      fail_at(ErrorKind::format, "the " + name_of(section.kind) + " section occurs twice", offset,
              section.field);
    }
    check_length(section, offset + 16);
    slot = section;
    return section;
  }

  Section& slot_of(const Section& section) {
    switch (section.kind) {
      case Kind::heap:
        return result_.heap;
      case Kind::offsets:
        return result_.offsets;
      case Kind::value_checksums:
        return result_.value_checksums;
      case Kind::block_checksums:
        return result_.block_checksums;
      case Kind::column:
        return result_.columns[section.field];
      case Kind::validity:
        return result_.validities[section.field];
      case Kind::dictionary:
        break;
    }
    return result_.dictionaries[section.field];
  }

  void check_length(const Section& section, std::uint64_t offset) const {
    const auto heap_fields = static_cast<std::uint64_t>(std::count_if(
        schema_.fields.begin(), schema_.fields.end(), [](const FieldSpec& field) { return field.heap; }));
    const std::uint64_t records = trailer_.records;
    std::optional<std::uint64_t> wanted = section.bytes;
    switch (section.kind) {
      case Kind::heap:
        break;
      case Kind::column:
        wanted = multiply(records, schema_.fields[section.field].item_bytes);
        break;
      case Kind::offsets:
        wanted = multiply(records, 8 * heap_fields);
        break;
      case Kind::validity:
        wanted = records / 8 + (records % 8 != 0);
        break;
      case Kind::dictionary:
        if (section.bytes > layout::max_dictionary_bytes) wanted = layout::max_dictionary_bytes;
        break;
      case Kind::value_checksums:
        wanted = multiply(records, 4 * heap_fields);
        break;
      case Kind::block_checksums:
        break;  // known when all sections are: check_block_crcs
    }
    if (wanted == section.bytes) return;
    fail_at(ErrorKind::format,
            "the " + name_of(section.kind) + " section has " + number(section.bytes) +
                " bytes, which contradicts the number of records",
            offset, section.field);
  }

  void check_presence() const {
    const auto directory = trailer_.directory_offset;
    for (const Section* section :
         {&result_.heap, &result_.offsets, &result_.value_checksums, &result_.block_checksums}) {
      if (section->kind == Kind{}) fail_at(ErrorKind::format, "the directory lacks a section", directory);
    }
    for (std::uint32_t i = 0; i < schema_.fields.size(); ++i) {
      const FieldSpec& field = schema_.fields[i];
      if ((result_.columns[i].kind != Kind{}) == field.heap) {
        fail_at(ErrorKind::format, field.heap ? "a heap field has a column" : "the column is missing",
                directory, i);
      }
      if ((result_.validities[i].kind != Kind{}) != field.nullable) {
        fail_at(ErrorKind::format,
                field.nullable ? "the validity is missing" : "a field that is not nullable has a validity",
                directory, i);
      }
      if (result_.dictionaries[i].kind != Kind{} && !(field.heap && field.codec == Codec::zstd)) {
        fail_at(ErrorKind::format, "a field without zstd has a dictionary", directory, i);
      }
    }
  }

  void check_block_crcs() const {
    std::uint64_t blocks = result_.offsets.blocks();
    for (const auto* sections : {&result_.columns, &result_.validities, &result_.dictionaries}) {
      for (const Section& section : *sections) blocks += section.blocks();
    }
    // Blocks are 64 KiB of the file, so four bytes for each cannot overflow.
    const std::uint64_t room = result_.block_checksums.bytes;
    if (room != 4 * blocks) {
      fail_at(ErrorKind::format,
              "the block checksums section has " + number(room) + " bytes for " + number(blocks) + " blocks",
              result_.block_checksums.offset);
    }
    const auto check = [&](const Section& section) {
      if (section.block_crcs % 4 != 0 || section.block_crcs > room ||
          4 * section.blocks() > room - section.block_crcs) {
        fail_at(ErrorKind::format,
                "the block CRCs of the " + name_of(section.kind) + " section lie outside theirs",
                trailer_.directory_offset, section.field);
      }
    };
    check(result_.offsets);
    for (const auto* sections : {&result_.columns, &result_.validities, &result_.dictionaries}) {
      for (const Section& section : *sections) check(section);
    }
  }

  Bytes file_;
  const SchemaSpec& schema_;
  const std::optional<ShardExpectation>& expected_;
  const FileErrors& errors_;
  Trailer trailer_{};
  Directory result_;
};

}  // namespace

std::string hint_of(ErrorKind kind) {
  switch (kind) {
    case ErrorKind::corruption:
      return "restore the file from a copy; `fastload verify` lists all damage";
    case ErrorKind::unsupported:
      return "install a newer fastload";
    case ErrorKind::shard_not_found:
      return "restore the file; `fastload verify` lists all that are missing";
    default:
      return {};
  }
}

Directory read_directory(Bytes file, const SchemaSpec& schema,
                         const std::optional<ShardExpectation>& expected, const FileErrors& errors) {
  return Reader(file, schema, expected, errors).read();
}

}  // namespace fastload

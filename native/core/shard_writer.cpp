#include "core/shard_writer.h"

#include <algorithm>
#include <utility>

#include "core/crc32c.h"
#include "core/sha256.h"

namespace fastload {
namespace {

constexpr std::size_t buffer_bytes = std::size_t{1} << 20;

template <typename T>
Bytes bytes_of(const T& value) {
  return std::as_bytes(std::span(&value, 1));
}

std::array<std::byte, layout::header_bytes> make_header(const std::array<std::byte, 16>& identity) {
  std::array<std::byte, layout::header_bytes> header{};
  store(header.data(), layout::shard_magic);
  store(header.data() + 8, layout::major);
  store(header.data() + 10, layout::minor);
  store(header.data() + 12, static_cast<std::uint32_t>(layout::header_bytes));
  std::copy(identity.begin(), identity.end(), header.begin() + 32);
  store(header.data() + 60, crc32c(Bytes(header).first(60)));
  return header;
}

std::vector<std::byte> make_directory(const std::vector<Section>& sections, const std::string& json) {
  const std::size_t json_start = layout::directory_head_bytes + sections.size() * layout::entry_bytes;
  std::vector<std::byte> directory(json_start + json.size());
  store(directory.data(), static_cast<std::uint32_t>(sections.size()));
  store(directory.data() + 4, static_cast<std::uint32_t>(json.size()));
  std::byte* entry = directory.data() + layout::directory_head_bytes;
  for (const Section& section : sections) {
    store(entry, static_cast<std::uint32_t>(section.kind));
    store(entry + 4, section.field);
    store(entry + 8, section.offset);
    store(entry + 16, section.bytes);
    store(entry + 24, has_blocks(section.kind) ? layout::block_bytes : 0);
    store(entry + 28, section.crc);
    store(entry + 32, section.block_crcs);
    entry += layout::entry_bytes;
  }
  std::memcpy(directory.data() + json_start, json.data(), json.size());
  return directory;
}

// Marks a writer unusable for as long as an operation runs, and for good where it throws.
class InProgress {
 public:
  explicit InProgress(bool& usable) : usable_(usable) {
    if (!usable) throw Error(ErrorKind::engine, "the shard was finished before, or writing it failed");
    usable = false;
  }
  void done() { usable_ = true; }

 private:
  bool& usable_;
};

}  // namespace

ShardWriter::ShardWriter(std::shared_ptr<const SchemaSpec> schema, Sink sink, ShardWriterOptions options)
    : schema_(std::move(schema)),
      sink_(std::move(sink)),
      options_(std::move(options)),
      spill_(options_.spill_bytes, options_.spill_folder),
      fields_(schema_->fields.size()),
      ends_(spill_.add()),
      value_crcs_(spill_.add()) {
  options_.dictionaries.resize(fields_.size());
  for (std::size_t i = 0; i < fields_.size(); ++i) {
    const FieldSpec& spec = schema_->fields[i];
    const auto& dictionary = options_.dictionaries[i];
    const bool zstd = spec.heap && spec.codec == Codec::zstd;
    if (!dictionary.empty() && (!zstd || dictionary.size() > layout::max_dictionary_bytes)) {
      throw Error(ErrorKind::usage,
                  zstd ? "a dictionary is larger than 1 MiB" : "a dictionary for a field without zstd",
                  {.field = spec.name});
    }
    if (zstd) fields_[i].compressor = std::make_unique<ZstdCompressor>(dictionary, options_.level);
    if (spec.nullable) fields_[i].validity = spill_.add();
    if (spec.heap) {
      ++heap_fields_;
    } else {
      fields_[i].column = spill_.add();
      column_bytes_ += spec.item_bytes;
    }
  }
  buffer_.reserve(heap_fields_ == 0 ? 0 : buffer_bytes);
  out(make_header(options_.identity));
  pad(layout::section_alignment);
}

std::uint64_t ShardWriter::bytes_written() const {
  return layout::header_bytes + heap_end_ + records_ * (column_bytes_ + 12 * heap_fields_);
}

void ShardWriter::append(std::span<const std::optional<Bytes>> payloads) {
  check(payloads);
  InProgress progress(usable_);
  for (std::size_t i = 0; i < fields_.size(); ++i) {
    const FieldSpec& spec = schema_->fields[i];
    if (spec.nullable) append_validity(fields_[i], payloads[i].has_value());
    if (spec.heap) {
      append_value(i, payloads[i]);
    } else {
      append_column(i, payloads[i]);
    }
  }
  ++records_;
  progress.done();
}

void ShardWriter::check(std::span<const std::optional<Bytes>> payloads) const {
  if (payloads.size() != fields_.size()) {
    throw Error(ErrorKind::record, std::to_string(payloads.size()) + " payloads for " +
                                       std::to_string(fields_.size()) + " fields");
  }
  for (std::size_t i = 0; i < fields_.size(); ++i) {
    const FieldSpec& spec = schema_->fields[i];
    if (!payloads[i]) {
      if (!spec.nullable)
        throw Error(ErrorKind::record, "a null in a field that is not nullable", {.field = spec.name});
    } else if (!spec.heap && payloads[i]->size() != spec.item_bytes) {
      throw Error(
          ErrorKind::record,
          std::to_string(payloads[i]->size()) + " bytes for an item of " + std::to_string(spec.item_bytes),
          {.field = spec.name});
    }
  }
}

void ShardWriter::append_column(std::size_t field, const std::optional<Bytes>& payload) {
  if (payload) {
    spill_.append(fields_[field].column, *payload);
  } else {
    spill_.append_zeros(fields_[field].column, schema_->fields[field].item_bytes);
  }
}

void ShardWriter::append_validity(Field& field, bool valid) {
  field.bits |= static_cast<std::uint8_t>(valid ? 1u << (records_ & 7) : 0u);
  if ((records_ & 7) != 7) return;
  spill_.append(field.validity, bytes_of(field.bits));
  field.bits = 0;
}

void ShardWriter::append_value(std::size_t field, const std::optional<Bytes>& payload) {
  std::uint32_t crc = 0;
  if (payload) {
    static constexpr std::byte zeros[8]{};
    ZstdCompressor* compressor = fields_[field].compressor.get();
    const Bytes stored = compressor == nullptr ? *payload : compressor->compress(*payload);
    put({zeros, static_cast<std::size_t>(align_up(heap_end_, schema_->fields[field].alignment) - heap_end_)});
    put(stored);
    crc = crc32c(stored);
  }
  spill_.append(ends_, bytes_of(heap_end_));
  spill_.append(value_crcs_, bytes_of(crc));
}

void ShardWriter::put(Bytes data) {
  heap_end_ += data.size();
  if (buffer_.size() + data.size() > buffer_bytes) flush();
  if (data.size() < buffer_bytes) {
    buffer_.insert(buffer_.end(), data.begin(), data.end());
    return;
  }
  heap_crc_ = crc32c(data, heap_crc_);
  out(data);
}

void ShardWriter::flush() {
  heap_crc_ = crc32c(buffer_, heap_crc_);
  out(buffer_);
  buffer_.clear();
}

void ShardWriter::out(Bytes data) {
  if (data.empty()) return;
  sink_(data);
  position_ += data.size();
}

void ShardWriter::pad(std::uint64_t alignment) {
  static constexpr std::byte zeros[layout::section_alignment]{};
  out({zeros, static_cast<std::size_t>(align_up(position_, alignment) - position_)});
}

// `pieces` hands the section's bytes over; all pieces but the last are whole numbers of blocks.
void ShardWriter::write_section(Kind kind, std::uint32_t field,
                                const std::function<void(const Sink&)>& pieces) {
  pad(layout::section_alignment);
  Section section;
  section.kind = kind;
  section.field = field;
  section.offset = position_;
  const std::uint64_t first_crc = 4 * static_cast<std::uint64_t>(block_crcs_.size());
  pieces([&](Bytes piece) {
    section.crc = crc32c(piece, section.crc);
    for (std::size_t begin = 0; has_blocks(kind) && begin < piece.size(); begin += layout::block_bytes) {
      block_crcs_.push_back(
          crc32c(piece.subspan(begin, std::min<std::size_t>(layout::block_bytes, piece.size() - begin))));
    }
    out(piece);
  });
  section.bytes = position_ - section.offset;
  section.block_crcs = section.blocks() == 0 ? 0 : first_crc;
  sections_.push_back(section);
}

void ShardWriter::write_spilled(Kind kind, std::uint32_t field, std::size_t section) {
  write_section(kind, field, [&](const Sink& take) { spill_.read(section, take); });
}

ShardExpectation ShardWriter::finish() {
  InProgress progress(usable_);  // and stays so: there is nothing to do after it
  flush();
  Section heap;
  heap.kind = Kind::heap;
  heap.offset = layout::section_alignment;
  heap.bytes = heap_end_;
  heap.crc = heap_crc_;
  sections_.push_back(heap);
  for (std::uint32_t i = 0; i < fields_.size(); ++i) {
    if (!schema_->fields[i].heap) write_spilled(Kind::column, i, fields_[i].column);
  }
  pad(layout::section_alignment);
  const std::uint64_t index_offset = position_;
  write_index();
  const ShardExpectation result = write_end(index_offset);
  spill_.clear();
  return result;
}

void ShardWriter::write_index() {
  write_spilled(Kind::offsets, layout::no_field, ends_);
  for (std::uint32_t i = 0; i < fields_.size(); ++i) {
    if (!schema_->fields[i].nullable) continue;
    if ((records_ & 7) != 0) spill_.append(fields_[i].validity, bytes_of(fields_[i].bits));
    write_spilled(Kind::validity, i, fields_[i].validity);
  }
  for (std::uint32_t i = 0; i < fields_.size(); ++i) {
    const auto& dictionary = options_.dictionaries[i];
    if (dictionary.empty()) continue;
    write_section(Kind::dictionary, i, [&](const Sink& take) { take(dictionary); });
  }
  write_spilled(Kind::value_checksums, layout::no_field, value_crcs_);
  write_section(Kind::block_checksums, layout::no_field,
                [&](const Sink& take) { take(std::as_bytes(std::span(block_crcs_))); });
}

ShardExpectation ShardWriter::write_end(std::uint64_t index_offset) {
  pad(layout::directory_alignment);
  const std::vector<std::byte> directory = make_directory(sections_, schema_->json);
  const std::uint64_t size = position_ + directory.size() + layout::trailer_bytes;
  std::array<std::byte, layout::trailer_bytes> trailer{};
  store(trailer.data(), position_);
  store(trailer.data() + 8, static_cast<std::uint64_t>(directory.size()));
  store(trailer.data() + 16, records_);
  store(trailer.data() + 24, size);
  store(trailer.data() + 32, index_offset);
  store(trailer.data() + 40, crc32c(directory));
  store(trailer.data() + 44, layout::major);
  store(trailer.data() + 46, layout::minor);
  std::copy_n(options_.identity.begin(), 8, trailer.begin() + 48);
  store(trailer.data() + 56, crc32c(Bytes(trailer).first(56)));
  store(trailer.data() + 60, layout::trailer_magic);
  out(directory);
  out(trailer);
  return {records_, size, size - index_offset, content_checksum(directory)};
}

}  // namespace fastload

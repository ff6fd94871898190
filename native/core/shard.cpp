#include "core/shard.h"

#include <algorithm>
#include <mutex>
#include <utility>

#include "core/crc32c.h"
#include "core/directory.h"
#include "core/zstd_codec.h"

namespace fastload {
namespace {

// The folder of a path, and the name in it.
std::pair<std::string, std::string> split_path(const std::string& path) {
  const std::size_t slash = path.find_last_of('/');
  if (slash == std::string::npos) return {".", path};
  return {slash == 0 ? "/" : path.substr(0, slash), path.substr(slash + 1)};
}

std::uint64_t words_for(std::uint64_t bits) { return bits / 64 + (bits % 64 != 0); }

}  // namespace

// A field's dictionary, made when the first value needs it.
struct Shard::LazyDictionary {
  std::mutex mutex;
  std::atomic<const ZstdDictionary*> ready{nullptr};
  std::unique_ptr<const ZstdDictionary> dictionary;
};

Shard::~Shard() = default;

std::shared_ptr<Shard> Shard::open(const std::string& path, std::shared_ptr<const SchemaSpec> schema,
                                   const std::optional<ShardExpectation>& expected, Verify verify,
                                   std::uint64_t first_record, std::shared_ptr<VerifiedBits> verified) {
  const FileErrors errors{split_path(path).first, split_path(path).second};
  const std::shared_ptr<Shard> shard(new Shard);
  try {
    shard->file_ = MappedFile(path);
  } catch (Error& error) {
    if (error.kind == ErrorKind::shard_not_found)
      errors.fail(error.kind, "a shard that the dataset names is missing");
    error.where.path = errors.path;
    error.where.shard = errors.shard;
    if (error.hint.empty()) error.hint = hint_of(error.kind);
    throw;
  }
  shard->path_ = path;
  shard->schema_ = std::move(schema);
  shard->verify_ = verify;
  shard->first_record_ = first_record;
  shard->attach(read_directory(shard->file_.bytes(), *shard->schema_, expected, errors), std::move(verified));
  shard->check_heap_end();
  return shard;
}

void Shard::attach(const Directory& directory, std::shared_ptr<VerifiedBits> verified) {
  const std::byte* file = file_.bytes().data();
  const std::byte* crcs = file + directory.block_checksums.offset;
  const auto blocks = [&](const Section& section) {
    return Blocks{file + section.offset, section.bytes, section.offset, crcs + section.block_crcs, nullptr};
  };
  records_ = directory.records;
  heap_ = file_.bytes().subspan(directory.heap.offset, directory.heap.bytes);
  heap_offset_ = directory.heap.offset;
  offsets_ = blocks(directory.offsets);
  value_crcs_ = file + directory.value_checksums.offset;
  fields_.resize(schema_->fields.size());
  dictionaries_.resize(fields_.size());
  for (std::size_t i = 0; i < fields_.size(); ++i) {
    const FieldSpec& spec = schema_->fields[i];
    Field& field = fields_[i];
    field.heap = spec.heap;
    field.nullable = spec.nullable;
    field.zstd = spec.heap && spec.codec == Codec::zstd;
    field.item_bytes = spec.item_bytes;
    field.alignment = spec.alignment;
    if (spec.heap) field.heap_index = heap_fields_++;
    if (!spec.heap) field.column = blocks(directory.columns[i]);
    if (spec.nullable) field.validity = blocks(directory.validities[i]);
    if (directory.dictionaries[i].bytes != 0) {
      field.dictionary = blocks(directory.dictionaries[i]);
      dictionaries_[i] = std::make_unique<LazyDictionary>();
    }
  }
  if (verify_ == Verify::first) attach_bits(std::move(verified));
}

void Shard::attach_bits(std::shared_ptr<VerifiedBits> verified) {
  // Each section begins at a word of its own, so that ColumnView can number blocks from 0. All sizes are of
  // the order of the mapped file's, so the sum cannot overflow.
  std::vector<std::pair<Blocks*, std::uint64_t>> places;
  std::uint64_t words = 0;
  const auto place = [&](Blocks& blocks) {
    places.emplace_back(&blocks, words);
    words += words_for(blocks.bytes / layout::block_bytes + (blocks.bytes % layout::block_bytes != 0));
  };
  place(offsets_);
  for (Field& field : fields_) {
    place(field.column);
    place(field.validity);
    place(field.dictionary);
  }
  const std::uint64_t value_place = words;
  words += words_for(records_ * heap_fields_);
  // Equal checksums mean equal directories, hence equal sizes; a shard opened without them might differ.
  if (verified == nullptr || verified->words() != words) verified = std::make_shared<VerifiedBits>(words);
  verified_ = std::move(verified);
  for (auto [blocks, start] : places) blocks->bits = verified_->data() + start;
  value_bits_ = verified_->data() + value_place;
}

// The last end is the heap's length. Where it is not, a damaged block of offsets is the likelier cause.
void Shard::check_heap_end() const {
  if (offsets_.bytes == 0) {
    if (heap_.empty()) return;
    fail(ErrorKind::format, "the heap holds bytes, but no values", layout::no_field, records_, heap_offset_);
  }
  const std::uint64_t position = offsets_.bytes - 8;
  if (load<std::uint64_t>(offsets_.data + position) == heap_.size()) return;
  ensure(offsets_, position, 8, layout::no_field, records_);
  fail(ErrorKind::format, "the last offset differs from the length of the heap", layout::no_field, records_,
       offsets_.offset + position);
}

void Shard::verify_block(const Blocks& blocks, std::uint64_t block, std::uint32_t field,
                         std::uint64_t record) const {
  const std::uint64_t begin = block << block_shift;
  const std::uint64_t bytes = std::min<std::uint64_t>(layout::block_bytes, blocks.bytes - begin);
  const std::uint32_t crc = crc32c({blocks.data + begin, static_cast<std::size_t>(bytes)});
  if (crc != load<std::uint32_t>(blocks.crcs + 4 * block)) {
    fail(ErrorKind::corruption, "the CRC of a block differs", field, record, blocks.offset + begin);
  }
  if (blocks.bits != nullptr) VerifiedBits::set(blocks.bits, block);
}

void Shard::verify_value(Bytes value, std::uint64_t number, std::uint32_t field, std::uint64_t record) const {
  if (crc32c(value) != load<std::uint32_t>(value_crcs_ + 4 * number)) {
    fail(ErrorKind::corruption, "the CRC of a value differs", field, record,
         static_cast<std::uint64_t>(value.data() - file_.bytes().data()));
  }
  if (value_bits_ != nullptr) VerifiedBits::set(value_bits_, number);
}

Bytes Shard::stored(std::uint32_t field, std::uint64_t record) const {
  const Field& spec = field_at(field, record);
  if (!spec.heap) return item(field, record);
  const std::uint64_t number = record * heap_fields_ + spec.heap_index;
  const std::uint64_t first = number == 0 ? 0 : number - 1;
  ensure(offsets_, 8 * first, 8 * (number - first + 1), field, record);
  const std::uint64_t previous = number == 0 ? 0 : load<std::uint64_t>(offsets_.data + 8 * first);
  const std::uint64_t end = load<std::uint64_t>(offsets_.data + 8 * number);
  const bool null = !is_valid(spec, field, record);
  // No overflow: only what lies in the mapped file is aligned.
  const std::uint64_t start = null || previous > end ? previous : align_up(previous, spec.alignment);
  if (end > heap_.size() || start > end || (null && start != end)) [[unlikely]] {
    fail(ErrorKind::format, "the value's end contradicts its start or the heap", field, record,
         offsets_.offset + 8 * number);
  }
  // A null is checked as well: its CRC is 0, that of no bytes.
  const Bytes value = heap_.subspan(start, end - start);
  if (verify_ == Verify::always || (value_bits_ != nullptr && !VerifiedBits::test(value_bits_, number))) {
    verify_value(value, number, field, record);
  }
  return value;
}

std::uint64_t Shard::value_bytes(std::uint32_t field, std::uint64_t record) const {
  const Bytes bytes = stored(field, record);
  const Field& spec = fields_[field];
  if (!spec.zstd || !is_valid(spec, field, record)) return bytes.size();
  return content_bytes(bytes, field, record);
}

Bytes Shard::value(std::uint32_t field, std::uint64_t record, std::vector<std::byte>& scratch) const {
  const Bytes bytes = stored(field, record);
  const Field& spec = fields_[field];
  if (!spec.zstd || !is_valid(spec, field, record)) return bytes;
  const std::uint64_t size = content_bytes(bytes, field, record);
  if (scratch.size() < size) scratch.resize(size);
  const std::span<std::byte> output(scratch.data(), static_cast<std::size_t>(size));
  decompress(bytes, output, field, record);
  return output;
}

void Shard::value_into(std::uint32_t field, std::uint64_t record, std::span<std::byte> output) const {
  const Bytes bytes = stored(field, record);
  const Field& spec = fields_[field];
  const bool packed = spec.zstd && is_valid(spec, field, record);
  if ((packed ? content_bytes(bytes, field, record) : bytes.size()) != output.size()) {
    throw value_error(ErrorKind::usage, "room for " + std::to_string(output.size()) + " bytes was given",
                      field, record);
  }
  if (packed) {
    decompress(bytes, output, field, record);
  } else if (!bytes.empty()) {
    std::memcpy(output.data(), bytes.data(), bytes.size());
  }
}

ColumnView Shard::column(std::uint32_t field) const {
  if (field >= fields_.size() || fields_[field].heap) throw_not_column(field);
  const Field& spec = fields_[field];
  if (verify_ == Verify::always) return {nullptr, spec.item_bytes, block_shift, nullptr};
  return {spec.column.data, spec.item_bytes, block_shift, spec.column.bits};
}

void Shard::will_need(std::uint64_t record, std::span<const std::uint32_t> fields) const {
  if (record >= records_) return;
  std::uint64_t begin = 0;  // neighbouring heap values are asked for together
  std::uint64_t end = 0;
  const auto ask = [&] {
    if (end > begin) file_.will_need(begin, end - begin);
  };
  for (const std::uint32_t number : fields) {
    if (number >= fields_.size()) continue;
    const Field& field = fields_[number];
    std::uint64_t next_begin = field.column.offset + record * field.item_bytes;
    std::uint64_t next_end = next_begin + field.item_bytes;
    if (field.heap) {
      // Unverified: what the offsets say is only clamped to the heap.
      const std::uint64_t value = record * heap_fields_ + field.heap_index;
      const std::uint64_t from = value == 0 ? 0 : load<std::uint64_t>(offsets_.data + 8 * (value - 1));
      const std::uint64_t to = load<std::uint64_t>(offsets_.data + 8 * value);
      if (from > to || to > heap_.size()) continue;
      next_begin = heap_offset_ + from;
      next_end = heap_offset_ + to;
    }
    if (next_begin == end) {
      end = next_end;
    } else {
      ask();
      begin = next_begin;
      end = next_end;
    }
  }
  ask();
}

const ZstdDictionary* Shard::dictionary(std::uint32_t field, std::uint64_t record) const {
  LazyDictionary* lazy = dictionaries_[field].get();
  if (lazy == nullptr) return nullptr;
  if (const auto* ready = lazy->ready.load(std::memory_order_acquire)) return ready;
  const std::lock_guard lock(lazy->mutex);
  if (lazy->dictionary == nullptr) {
    const Blocks& content = fields_[field].dictionary;
    ensure(content, 0, content.bytes, field, record);
    try {
      lazy->dictionary = std::make_unique<const ZstdDictionary>(
          Bytes(content.data, static_cast<std::size_t>(content.bytes)));
    } catch (const Error& error) {
      throw value_error(error.kind, error.what(), field, record);
    }
    lazy->ready.store(lazy->dictionary.get(), std::memory_order_release);
  }
  return lazy->dictionary.get();
}

std::uint64_t Shard::content_bytes(Bytes frame, std::uint32_t field, std::uint64_t record) const {
  const auto size = zstd_content_bytes(frame);
  if (!size) {
    throw value_error(ErrorKind::decode, "the value is no zstd frame that names a possible content size",
                      field, record);
  }
  return *size;
}

void Shard::decompress(Bytes frame, std::span<std::byte> output, std::uint32_t field,
                       std::uint64_t record) const {
  const char* wrong = zstd_decompress(frame, dictionary(field, record), output);
  if (wrong == nullptr) return;
  throw value_error(ErrorKind::decode, std::string("the zstd frame cannot be decoded: ") + wrong, field,
                    record);
}

Error Shard::value_error(ErrorKind kind, const std::string& message, std::uint32_t field,
                         std::uint64_t record) const {
  auto [folder, name] = split_path(path_);
  Where where{std::move(folder), std::move(name), -1, {}, -1};
  if (record < records_) where.record = static_cast<std::int64_t>(first_record_ + record);
  if (field < fields_.size()) where.field = schema_->fields[field].name;
  return Error(kind, message, std::move(where), hint_of(kind));
}

void Shard::fail(ErrorKind kind, const std::string& message, std::uint32_t field, std::uint64_t record,
                 std::uint64_t offset) const {
  Error error = value_error(kind, message, field, record);
  error.where.offset = static_cast<std::int64_t>(offset);
  throw error;
}

void Shard::throw_range(std::uint32_t field, std::uint64_t record) const {
  if (field >= fields_.size()) {
    throw Error(ErrorKind::usage, "there is no field number " + std::to_string(field), {path_});
  }
  throw Error(ErrorKind::usage,
              "record " + std::to_string(record) + " of the shard's " + std::to_string(records_), {path_});
}

void Shard::throw_not_column(std::uint32_t field) const {
  throw Error(ErrorKind::usage, "field number " + std::to_string(field) + " is no column", {path_});
}

}  // namespace fastload

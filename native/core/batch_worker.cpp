#include "core/batch_worker.h"

#include <sys/resource.h>

#include <algorithm>
#include <cstring>
#include <string>

#include "core/batch_copy.h"

namespace fastload {
namespace {

// A worker holds at most this many shards mapped beyond those of the samples at hand. Opening one again costs
// more than a hundred small records, so that a full shuffle must not do it often; the kernel allows 65,530
// mappings a process, and workers share them.
constexpr std::size_t open_shards_kept = 4096;

// Samples that took longer may have waited for the disk: worth the system call that tells.
constexpr std::uint64_t suspicious_ns = 50'000;
// How many samples "of late" are.
constexpr std::int64_t recent_window = 64;
// A hint costs one or two microseconds a record, a read fifty and more. Where the kernel's own read-ahead
// leaves fewer faults than one in this many records, hints cost more than they spare.
constexpr std::int64_t faults_worth_it = 8;

// How often the calling thread has waited for the disk to bring a page.
std::int64_t major_faults() {
#ifdef RUSAGE_THREAD
  rusage usage{};
  getrusage(RUSAGE_THREAD, &usage);
  return usage.ru_majflt;
#else
  return 0;
#endif
}

bool has_images(const BatchPlan& plan) {
  return std::any_of(plan.fields.begin(), plan.fields.end(),
                     [](const FieldPlan& field) { return field.kind == FieldKind::image; });
}

// Values that no writer of ours makes, and that NumPy and torch take for granted.
void check_boolean(Bytes bytes) {
  unsigned all = 0;
  for (const std::byte value : bytes) all |= std::to_integer<unsigned>(value);
  if (all > 1) throw Error(ErrorKind::decode, "a bool is neither 0 nor 1");
}

void check_label(const std::byte* item, std::uint64_t classes) {
  std::int64_t label = 0;
  std::memcpy(&label, item, sizeof label);
  if (static_cast<std::uint64_t>(label) >= classes) {
    throw Error(ErrorKind::decode, "the label " + std::to_string(label) + " is outside the " +
                                       std::to_string(classes) + " classes");
  }
}

// Bytes that are not what a writer made of a record. Anything else that fails is no matter of the record.
bool is_bad_record(const Error& error) {
  return error.kind == ErrorKind::decode || error.kind == ErrorKind::corruption ||
         error.kind == ErrorKind::record;
}

std::string text(image::Size size) {
  return std::to_string(size.height) + " x " + std::to_string(size.width);
}

std::string shape(image::Size size) {
  return "(" + std::to_string(size.height) + ", " + std::to_string(size.width) + ")";
}

}  // namespace

BatchWorker::BatchWorker(std::shared_ptr<const BatchPlan> plan)
    : plan_(std::move(plan)), image_scratch_(has_images(*plan_) ? image::Scratch::make() : nullptr) {
  for (const FieldPlan& field : plan_->fields) schema_fields_.push_back(field.field);
  image_sizes_.resize(plan_->fields.size());
}

image::SampleKey BatchWorker::key(const Batch& batch, std::size_t sample) const {
  return {plan_->seed, batch.indices.epoch, static_cast<std::uint64_t>(batch.indices.positions[sample])};
}

BatchWorker::OpenShard* BatchWorker::open_shard(std::int64_t source, std::int64_t record) {
  const auto wanted = static_cast<std::uint64_t>(record);
  const auto holds = [&](const OpenShard& open) {
    return open.source == source && open.first <= wanted && wanted < open.end;
  };
  if (last_open_ != nullptr && holds(*last_open_)) return last_open_;
  // The first that begins behind the record; the one before may hold it.
  auto behind = std::upper_bound(open_.begin(), open_.end(), std::pair(source, wanted),
                                 [](const auto& value, const std::unique_ptr<OpenShard>& open) {
                                   return value < std::pair(open->source, open->first);
                                 });
  if (behind != open_.begin() && holds(**(behind - 1))) return last_open_ = (behind - 1)->get();
  if (source < 0 || static_cast<std::size_t>(source) >= plan_->sources.size() || record < 0) {
    throw Error(ErrorKind::usage,
                "there is no record " + std::to_string(record) + " of source " + std::to_string(source));
  }
  Dataset& dataset = *plan_->sources[static_cast<std::size_t>(source)];
  const std::uint64_t number = dataset.shard_of(wanted);
  auto open = std::make_unique<OpenShard>();
  open->source = source;
  open->first = dataset.start(number);
  open->end = dataset.start(number + 1);
  open->shard = dataset.shard(number);
  for (const FieldPlan& field : plan_->fields) {
    open->columns.push_back(field.kind == FieldKind::column ? open->shard->column(field.field)
                                                            : ColumnView{});
  }
  return last_open_ = open_.insert(behind, std::move(open))->get();
}

void BatchWorker::trim_open() {
  if (open_.size() <= open_shards_kept) return;
  open_.clear();
  last_open_ = nullptr;
}

std::size_t BatchWorker::locate(Batch& batch, std::size_t begin, std::size_t end) {
  first_ = begin;
  places_.resize(end - begin);
  trim_open();
  for (std::size_t i = begin; i < end; ++i) {
    try {
      OpenShard* open = open_shard(batch.indices.sources[i], batch.indices.records[i]);
      places_[i - begin] = {open, static_cast<std::uint64_t>(batch.indices.records[i]) - open->first};
    } catch (...) {
      fail(batch, i, nullptr);
      return i;
    }
  }
  return end;
}

void BatchWorker::fail(Batch& batch, std::size_t sample, const FieldPlan* field) {
  try {
    throw;
  } catch (Error& error) {
    error.where.record = batch.indices.records[sample];
    if (field != nullptr && error.where.field.empty()) error.where.field = field->name;
    if (field != nullptr && error.where.path.empty()) error.where.path = place(sample).open->shard->path();
    if (plan_->tolerant && is_bad_record(error)) {
      batch.reject(sample, error);
    } else {
      batch.fail(sample, std::make_exception_ptr(error));
    }
  } catch (...) {
    batch.fail(sample, std::current_exception());
  }
}

template <typename Make>
std::size_t BatchWorker::each(Batch& batch, std::size_t f, std::size_t begin, std::size_t end, Make&& make) {
  const FieldPlan& field = plan_->fields[f];
  auto* validity = batch.outputs[f].validity.as<std::uint8_t>();
  std::size_t i = begin;
  try {
    for (; i < end; ++i) {
      const Place at = place(i);
      if (field.nullable) {
        const bool valid = at.open->shard->valid(field.field, at.record);
        if (validity != nullptr) validity[i] = valid;
        if (!valid) continue;
      }
      make(i, at);
    }
  } catch (...) {
    fail(batch, i, &field);
  }
  return i;
}

template <typename Make>
void BatchWorker::each_run(Batch& batch, std::size_t begin, std::size_t end, Make&& make) {
  while (begin < (end = std::min(end, batch.limit()))) {
    std::size_t run_end = plan_->tolerant ? begin : end;
    while (run_end < end && !batch.rejected(run_end)) ++run_end;
    // What stopped the run is rejected, beyond the limit, or the end.
    begin = (run_end > begin ? make(begin, run_end) : run_end) + 1;
  }
}

void BatchWorker::size(Batch& batch, std::size_t begin, std::size_t end) {
  const std::uint64_t start = now_ns();
  each_run(batch, begin, end,
           [&](std::size_t first, std::size_t last) { return size_run(batch, first, last); });
  counters.size_ns.add(now_ns() - start);
}

std::size_t BatchWorker::size_run(Batch& batch, std::size_t begin, std::size_t end) {
  end = locate(batch, begin, end);
  for (std::size_t f = 0; f < plan_->fields.size(); ++f) {
    const FieldPlan& field = plan_->fields[f];
    if (field.kind != FieldKind::values) continue;
    auto* lengths = batch.outputs[f].lengths.as<std::int64_t>();
    end = each(batch, f, begin, end, [&](std::size_t i, Place at) {
      const std::uint64_t bytes = at.open->shard->value_bytes(field.field, at.record);
      if (bytes % field.unit_bytes() != 0) {
        throw Error(ErrorKind::decode, std::to_string(bytes) + " bytes are no multiple of the " +
                                           std::to_string(field.unit_bytes()) + " of the fixed dimensions");
      }
      lengths[i] = static_cast<std::int64_t>(bytes);
    });
  }
  return end;
}

void BatchWorker::size_images(Batch& batch) {
  for (std::size_t f = 0; f < plan_->fields.size(); ++f) {
    const FieldPlan& field = plan_->fields[f];
    if (field.kind != FieldKind::image || field.program->fixed_size()) continue;
    bool found = false;
    for (std::size_t i = 0; i < std::min(batch.samples(), batch.limit()) && !found; ++i) {
      if (batch.rejected(i) || locate(batch, i, i + 1) == i) continue;
      each(batch, f, i, i + 1, [&](std::size_t, Place at) {
        batch.outputs[f].size_sample = i;
        const Bytes encoded = at.open->shard->value(field.field, at.record, scratch_);
        batch.outputs[f].size =
            field.program->output_size(encoded, key(batch, i), *image_scratch_, plan_->fallback);
        found = true;
      });
    }
  }
}

void BatchWorker::fill(Batch& batch, std::size_t begin, std::size_t end) {
  each_run(batch, begin, end,
           [&](std::size_t first, std::size_t last) { return fill_run(batch, first, last); });
}

std::size_t BatchWorker::fill_run(Batch& batch, std::size_t begin, std::size_t end) {
  std::uint64_t start = now_ns();
  end = locate(batch, begin, end);
  for (std::size_t f = 0; f < plan_->fields.size() && end > begin; ++f) {
    switch (plan_->fields[f].kind) {
      case FieldKind::column:
        end = fill_column(batch, f, begin, end);
        break;
      case FieldKind::values:
        end = fill_values(batch, f, begin, end);
        break;
      case FieldKind::image: {
        const std::uint64_t before = now_ns();
        counters.read_ns.add(before - start);
        end = fill_images(batch, f, begin, end);
        start = now_ns();
        counters.image_ns.add(start - before);
        break;
      }
    }
  }
  for (std::size_t f = 0; f < plan_->fields.size(); ++f) {
    if (plan_->fields[f].follows) end = compare_sizes(batch, f, begin, end);
  }
  counters.read_ns.add(now_ns() - start);
  counters.samples.add(end - begin);
  return end;
}

std::size_t BatchWorker::fill_column(Batch& batch, std::size_t f, std::size_t begin, std::size_t end) {
  const FieldPlan& field = plan_->fields[f];
  const FieldOutput& output = batch.outputs[f];
  const std::uint64_t item_bytes = field.item_bytes;
  if (field.nullable) {
    // A null is zeros in the column, so that only the validity is left to note.
    end = each(batch, f, begin, end, [](std::size_t, Place) {});
  }
  if (item_bytes == 0) return end;
  const ItemCopier copier(item_bytes, output.data.bytes());
  std::byte* to = output.data.data() + begin * item_bytes;
  std::size_t i = begin;
  try {
    for (; i < end; ++i, to += item_bytes) {
      const Place at = place(i);
      const ColumnView& column = at.open->columns[f];
      if (i + copier.ahead() < end) {
        const Place next = place(i + copier.ahead());
        if (const std::byte* data = next.open->columns[f].data)
          copier.prefetch(data + next.record * item_bytes);
      }
      const std::byte* from = column.data != nullptr && column.ready(at.record)
                                  ? column.data + at.record * item_bytes
                                  : at.open->shard->item(field.field, at.record).data();
      if (field.classes > 0) check_label(from, field.classes);
      if (field.boolean) check_boolean({from, item_bytes});
      copier.copy(to, from);
    }
  } catch (...) {
    fail(batch, i, &field);
  }
  copier.finish();
  counters.bytes.add((i - begin) * item_bytes);
  return i;
}

std::size_t BatchWorker::fill_values(Batch& batch, std::size_t f, std::size_t begin, std::size_t end) {
  const FieldPlan& field = plan_->fields[f];
  const FieldOutput& output = batch.outputs[f];
  const auto* lengths = output.lengths.as<const std::int64_t>();
  const auto* offsets = output.offsets.as<const std::int64_t>();
  std::uint64_t bytes = 0;
  const std::size_t stop = each(batch, f, begin, end, [&](std::size_t i, Place at) {
    bytes += static_cast<std::uint64_t>(lengths[i]);
    if (field.padded) {
      fill_padded(field, output, i, at);
      return;
    }
    const auto offset = static_cast<std::uint64_t>(offsets[i]) * field.offset_unit;
    const std::span<std::byte> to{output.data.data() + offset, static_cast<std::size_t>(lengths[i])};
    at.open->shard->value_into(field.field, at.record, to);
    if (field.boolean) check_boolean(to);
  });
  if (field.padded && field.nullable) {
    const std::size_t room = batch.samples() == 0 ? 0 : output.data.bytes() / batch.samples();
    for (std::size_t i = begin; i < stop; ++i) {
      if (output.validity.as<std::uint8_t>()[i] == 0) std::memset(output.data.data() + i * room, 0, room);
    }
  }
  counters.bytes.add(bytes);
  return stop;
}

void BatchWorker::fill_padded(const FieldPlan& field, const FieldOutput& output, std::size_t sample,
                              Place at) {
  const std::size_t samples = output.lengths.bytes() / 8;
  const std::uint64_t room = output.data.bytes() / samples;
  const std::uint64_t row_room = room / field.outer;
  const std::uint64_t row_bytes =
      static_cast<std::uint64_t>(output.lengths.as<const std::int64_t>()[sample]) / field.outer;
  std::byte* to = output.data.data() + sample * room;
  if (field.outer == 1) {
    at.open->shard->value_into(field.field, at.record, {to, row_bytes});
    if (field.boolean) check_boolean({to, row_bytes});
    std::memset(to + row_bytes, 0, row_room - row_bytes);
    return;
  }
  const Bytes value = at.open->shard->value(field.field, at.record, scratch_);
  if (value.size() != row_bytes * field.outer) {
    throw Error(ErrorKind::corruption, "a value's length changed while it was read");
  }
  if (field.boolean) check_boolean(value);
  for (std::uint64_t row = 0; row < field.outer; ++row, to += row_room) {
    if (row_bytes > 0) std::memcpy(to, value.data() + row * row_bytes, row_bytes);
    std::memset(to + row_bytes, 0, row_room - row_bytes);
  }
}

std::size_t BatchWorker::fill_images(Batch& batch, std::size_t f, std::size_t begin, std::size_t end) {
  const FieldPlan& field = plan_->fields[f];
  const FieldOutput& output = batch.outputs[f];
  const std::size_t item_bytes = output.data.bytes() / std::max<std::size_t>(batch.samples(), 1);
  image_sizes_[f].assign(end - begin, {});
  const std::size_t stop = each(batch, f, begin, end, [&](std::size_t i, Place at) {
    const Bytes encoded = at.open->shard->value(field.field, at.record, scratch_);
    if (!field.program->fixed_size()) {
      const image::Size size =
          field.program->output_size(encoded, key(batch, i), *image_scratch_, plan_->fallback);
      if (size != output.size) fail_size(batch, f, i, size);
    }
    image_sizes_[f][i - begin] = field.program->run(encoded, key(batch, i), *image_scratch_, plan_->fallback,
                                                    {output.data.data() + i * item_bytes, item_bytes});
    counters.bytes.add(item_bytes);
  });
  return stop;
}

// Returns the first sample whose mask has another size than its image, else end.
std::size_t BatchWorker::compare_sizes(Batch& batch, std::size_t f, std::size_t begin, std::size_t end) {
  const FieldPlan &mask = plan_->fields[f], &image = plan_->fields[*mask.follows];
  std::size_t i = begin;
  try {
    for (; i < end; ++i) {
      const image::Size size = image_sizes_[f][i - begin], wanted = image_sizes_[*mask.follows][i - begin];
      if (size == wanted || size == image::Size{} || wanted == image::Size{}) continue;
      throw Error(ErrorKind::record, "the mask is " + shape(size) + ", its image '" + image.name + "' " +
                                         shape(wanted) + ": (height, width)");
    }
  } catch (...) {
    fail(batch, i, &mask);
  }
  return i;
}

void BatchWorker::fail_size(const Batch& batch, std::size_t f, std::size_t sample, image::Size size) {
  const FieldOutput& output = batch.outputs[f];
  const auto record = [&](std::size_t i) { return std::to_string(batch.indices.records[i]); };
  throw Error(ErrorKind::engine,
              "records " + record(output.size_sample) + " and " + record(sample) +
                  " cannot be put into one batch: images of " + text(output.size) + " and " + text(size) +
                  " pixels",
              {}, "resize or crop to one size (transform), or take the samples with a collate_fn");
}

void BatchWorker::look_ahead(Batch& batch) {
  const std::uint64_t start = now_ns();
  const std::size_t step = 256;
  try {
    for (std::size_t begin = 0; begin < batch.samples(); begin += step) {
      const std::size_t end = std::min(begin + step, batch.samples());
      for (std::size_t i = begin; i < end; ++i) {
        const OpenShard* open = open_shard(batch.indices.sources[i], batch.indices.records[i]);
        open->shard->will_need(static_cast<std::uint64_t>(batch.indices.records[i]) - open->first,
                               schema_fields_);
      }
      trim_open();
    }
  } catch (const Error&) {
    // Only a hint: whoever makes the sample meets the same error and reports it.
  }
  counters.look_ahead_ns.add(now_ns() - start);
}

void BatchWorker::reset_faults() { faults_ = major_faults(); }

bool BatchWorker::waits_for_disk(std::size_t samples, std::uint64_t ns) {
  recent_samples_ += static_cast<std::int64_t>(samples);
  if (ns > suspicious_ns) {
    const std::int64_t faults = major_faults();
    recent_faults_ += faults - faults_;
    faults_ = faults;
  }
  if (recent_samples_ < recent_window) return false;
  const bool waits = recent_faults_ * faults_worth_it >= recent_samples_;
  recent_samples_ = recent_faults_ = 0;
  return waits;
}

}  // namespace fastload

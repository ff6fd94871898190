#include "core/batch.h"

#include <algorithm>
#include <cstring>

namespace fastload {
namespace {

// More bytes than any address space has: sums that stay below cannot overflow.
constexpr std::uint64_t most_bytes = std::uint64_t{1} << 56;

std::uint64_t checked_product(std::uint64_t a, std::uint64_t b) {
  std::uint64_t product = 0;
  if (__builtin_mul_overflow(a, b, &product) || product > most_bytes) {
    throw Error(ErrorKind::engine, "a batch would have more bytes than memory can", {},
                "use a smaller batch_size");
  }
  return product;
}

std::uint64_t element_bytes(image::ElementType type) {
  switch (type) {
    case image::ElementType::uint8:
      return 1;
    case image::ElementType::float16:
    case image::ElementType::bfloat16:
      return 2;
    case image::ElementType::float32:
      return 4;
  }
  return 4;
}

}  // namespace

bool BatchPlan::fixed_size() const {
  return std::all_of(fields.begin(), fields.end(), [](const FieldPlan& field) {
    return field.kind == FieldKind::column || (field.kind == FieldKind::image && field.program->fixed_size());
  });
}

bool Progress::claim(std::size_t& begin, std::size_t& end) {
  if (!unclaimed()) return false;
  begin = claimed_.fetch_add(samples_per_claim_, std::memory_order_acq_rel);
  if (begin >= samples_) return false;
  end = std::min(begin + samples_per_claim_, samples_);
  return true;
}

Batch::Batch(std::shared_ptr<const BatchPlan> shared_plan, BatchIndices batch_indices,
             std::vector<std::byte*> addresses, std::uint64_t batch_number)
    : plan(std::move(shared_plan)),
      indices(std::move(batch_indices)),
      number(batch_number),
      outputs(plan->fields.size()),
      addresses_(std::move(addresses)),
      data_bytes_(plan->fields.size()),
      rejected_(plan->tolerant ? samples() : 0) {}

void Batch::prepare(Pool& pool) {
  for (std::size_t f = 0; f < outputs.size(); ++f) {
    if (plan->fields[f].kind != FieldKind::values) continue;
    outputs[f].lengths = pool.allocate(8 * samples());
    // Samples behind one that fails have no length.
    if (samples() > 0) std::memset(outputs[f].lengths.data(), 0, 8 * samples());
    if (!plan->fields[f].padded) outputs[f].offsets = pool.allocate(8 * (samples() + 1));
  }
}

std::uint64_t Batch::measure() {
  bytes = 0;
  for (std::size_t f = 0; f < outputs.size(); ++f) {
    const FieldPlan& field = plan->fields[f];
    FieldOutput& output = outputs[f];
    switch (field.kind) {
      case FieldKind::column:
        data_bytes_[f] = checked_product(samples(), field.item_bytes);
        break;
      case FieldKind::image: {
        output.size = field.program->fixed_size().value_or(output.size);
        const auto pixels = checked_product(static_cast<std::uint64_t>(output.size.height),
                                            static_cast<std::uint64_t>(output.size.width));
        const auto item = checked_product(pixels, static_cast<std::uint64_t>(field.program->channels()) *
                                                      element_bytes(field.program->element_type()));
        data_bytes_[f] = checked_product(samples(), item);
        break;
      }
      case FieldKind::values:
        data_bytes_[f] = measure_values(field, output);
        bytes += 8 * (2 * samples() + 1);
        break;
    }
    if (field.nullable) bytes += samples();
    bytes += data_bytes_[f];
    checked_product(bytes, 1);
  }
  return bytes;
}

std::uint64_t Batch::measure_values(const FieldPlan& field, FieldOutput& output) {
  const auto* lengths = output.lengths.as<const std::int64_t>();
  if (field.padded) {
    std::int64_t longest = 0;
    for (std::size_t i = 0; i < samples(); ++i) longest = std::max(longest, lengths[i]);
    return checked_product(samples(), static_cast<std::uint64_t>(longest));
  }
  auto* offsets = output.offsets.as<std::int64_t>();
  std::uint64_t end = 0;
  for (std::size_t i = 0; i < samples(); ++i) {
    end = (end + field.alignment - 1) / field.alignment * field.alignment;
    offsets[i] = static_cast<std::int64_t>(end / field.offset_unit);
    end = checked_product(end + static_cast<std::uint64_t>(lengths[i]), 1);
  }
  offsets[samples()] = static_cast<std::int64_t>(end / field.offset_unit);
  return end;
}

void Batch::allocate(Pool& pool) {
  for (std::size_t f = 0; f < outputs.size(); ++f) {
    const FieldPlan& field = plan->fields[f];
    FieldOutput& output = outputs[f];
    std::byte* address = f < addresses_.size() ? addresses_[f] : nullptr;
    output.data =
        address == nullptr ? pool.allocate(data_bytes_[f]) : Block::foreign(address, data_bytes_[f]);
    if (field.nullable) output.validity = pool.allocate(samples());
  }
}

void Batch::fail(std::size_t sample, std::exception_ptr error) {
  std::lock_guard lock(error_mutex_);
  if (sample >= limit_.load(std::memory_order_relaxed)) return;
  limit_.store(sample, std::memory_order_release);
  error_ = std::move(error);
}

void Batch::reject(std::size_t sample, const Error& error) {
  rejected_[sample] = 1;
  std::lock_guard lock(error_mutex_);
  rejections_.push_back({sample, error});
}

void Batch::rethrow() {
  std::exception_ptr error;
  {
    std::lock_guard lock(error_mutex_);
    error.swap(error_);
  }
  if (error) std::rethrow_exception(error);
}

}  // namespace fastload

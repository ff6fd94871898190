// What batches are made of: the plan they all share, and one batch with its indices, its memory and its
// progress.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <limits>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "core/dataset.h"
#include "core/pool.h"
#include "image/program.h"

namespace fastload {

enum class FieldKind {
  column,  // n items of item_bytes
  image,   // n decoded images of one size
  values,  // heap values of any length, packed with their offsets or padded with zeros
};

// One field of the batches.
struct FieldPlan {
  std::string name;
  FieldKind kind = FieldKind::column;
  std::uint32_t field = 0;  // its number in the schema
  bool nullable = false;
  // column
  std::uint64_t item_bytes = 0;
  std::uint64_t classes = 0;  // where not 0: items are int64 below it
  // columns and values: bytes are 0 or 1
  bool boolean = false;
  // image
  std::shared_ptr<const image::Program> program;
  // The field of the plan whose images these are masks of, so that the sizes must be equal.
  std::optional<std::size_t> follows;
  // values: `outer` x length x `inner_bytes`, the length being free; (1, 1) for plain bytes. A value that is
  // no multiple of their product contradicts the schema.
  std::uint64_t outer = 1;
  std::uint64_t inner_bytes = 1;
  bool padded = false;
  std::uint64_t alignment = 1;    // packed: of the beginning of each value
  std::uint64_t offset_unit = 1;  // packed: offsets are given in this many bytes (needs alignment 1)

  std::uint64_t unit_bytes() const { return outer * inner_bytes; }
};

struct BatchPlan {
  std::vector<std::shared_ptr<Dataset>> sources;
  std::vector<FieldPlan> fields;
  std::uint64_t seed = 0;
  image::FallbackDecoder fallback;
  // Whether records whose bytes are bad are left unmade and reported, instead of failing their batch.
  bool tolerant = false;

  // Whether the bytes of a batch are known from its number of samples alone.
  bool fixed_size() const;
};

// The samples of one batch: arrays of one length.
struct BatchIndices {
  std::vector<std::int64_t> positions;
  std::vector<std::int64_t> sources;
  std::vector<std::int64_t> records;
  std::uint32_t epoch = 0;
};

// A sample that was left unmade, and why.
struct Rejection {
  std::size_t sample = 0;
  Error error;
};

// One field of a batch, made.
struct FieldOutput {
  Block data;
  Block offsets;                // packed values: n + 1 int64, in offset units; value i begins at offsets[i]
  Block lengths;                // values: n int64, in bytes
  Block validity;               // nullable: n bytes of 0 or 1
  image::Size size;             // images
  std::size_t size_sample = 0;  // the sample that decided it, where no operation does
};

// Hands out the samples of a batch, for one stage of it.
class Progress {
 public:
  void begin(std::size_t samples, std::size_t samples_per_claim) {
    samples_ = samples;
    samples_per_claim_ = samples_per_claim;
    left_.store(samples, std::memory_order_relaxed);
  }
  bool unclaimed() const { return claimed_.load(std::memory_order_relaxed) < samples_; }
  // Takes the next samples: false when all are taken.
  bool claim(std::size_t& begin, std::size_t& end);
  // Reports claimed samples as finished: true for the call after which all are.
  bool finish(std::size_t count) { return left_.fetch_sub(count, std::memory_order_acq_rel) == count; }

 private:
  std::size_t samples_ = 0;
  std::size_t samples_per_claim_ = 1;
  std::atomic<std::size_t> claimed_{0};
  std::atomic<std::size_t> left_{0};
};

class Batch {
 public:
  // `addresses`, empty or one a field: where the field's array goes (null: to the pool's memory).
  Batch(std::shared_ptr<const BatchPlan> plan, BatchIndices indices, std::vector<std::byte*> addresses,
        std::uint64_t number);

  // A batch is sized where its bytes are not known ahead, waits for room in the byte budget, is filled, is
  // done.
  enum class Stage { sizing, waiting, filling, done };

  std::size_t samples() const { return indices.records.size(); }
  // Before sizing: takes the memory for lengths and offsets. Throws Error (engine) when there is none.
  void prepare(Pool& pool);
  // After sizing: how many bytes the batch takes. Throws Error (engine) beyond what addresses can hold.
  std::uint64_t measure();
  // After measure(): takes the memory. Throws Error (engine) when there is none.
  void allocate(Pool& pool);

  // Records what went wrong with a sample. Of several, the first in the batch's order counts.
  void fail(std::size_t sample, std::exception_ptr error);
  // Samples from here on need not be made.
  std::size_t limit() const { return limit_.load(std::memory_order_acquire); }
  // Throws what was recorded, once.
  void rethrow();
  // Tolerant plans: leaves a sample unmade. Called by the thread that makes it, or between the stages.
  void reject(std::size_t sample, const Error& error);
  bool rejected(std::size_t sample) const { return !rejected_.empty() && rejected_[sample] != 0; }
  // Of a batch that is done.
  const std::vector<Rejection>& rejections() const { return rejections_; }

  const std::shared_ptr<const BatchPlan> plan;
  const BatchIndices indices;
  const std::uint64_t number;  // counts the batches of an engine
  std::vector<FieldOutput> outputs;
  std::atomic<Stage> stage{Stage::sizing};
  // One for each stage: a worker that still believes in the stage before cannot take samples of the next.
  Progress sizing;
  Progress filling;
  std::uint64_t bytes = 0;  // counted against the budget
  bool looked_ahead = false;

 private:
  std::uint64_t measure_values(const FieldPlan& field, FieldOutput& output);

  std::vector<std::byte*> addresses_;
  std::vector<std::uint64_t> data_bytes_;  // a field
  std::atomic<std::size_t> limit_{std::numeric_limits<std::size_t>::max()};
  std::mutex error_mutex_;
  std::exception_ptr error_;
  std::vector<std::uint8_t> rejected_;  // a sample, in tolerant plans
  std::vector<Rejection> rejections_;
};

}  // namespace fastload

// What one thread needs to make samples: scratch memory, the shards it reads now, and its counters. No locks.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "core/batch.h"

namespace fastload {

// Counted by one thread, read by any.
class Counter {
 public:
  void add(std::uint64_t amount) {
    value_.store(value_.load(std::memory_order_relaxed) + amount, std::memory_order_relaxed);
  }
  std::uint64_t get() const { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<std::uint64_t> value_{0};
};

struct alignas(64) WorkerCounters {
  Counter samples;
  Counter bytes;          // written to batches
  Counter size_ns;        // finding lengths
  Counter read_ns;        // locating, verifying, copying, decompressing
  Counter image_ns;       // decoding and transforming: fused, so one number
  Counter idle_ns;        // waiting for work
  Counter look_ahead_ns;  // telling the kernel what will be read
};

inline std::uint64_t now_ns() {
  return static_cast<std::uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(
                                        std::chrono::steady_clock::now().time_since_epoch())
                                        .count());
}

class BatchWorker {
 public:
  explicit BatchWorker(std::shared_ptr<const BatchPlan> plan);

  // Makes samples [begin, end) of the stage; what fails is recorded in the batch.
  void size(Batch& batch, std::size_t begin, std::size_t end);
  void fill(Batch& batch, std::size_t begin, std::size_t end);
  // Between the stages: finds the size of images where only an image tells.
  void size_images(Batch& batch);
  // Tells the kernel that the batch's records will be read.
  void look_ahead(Batch& batch);
  // Forgets what the calling thread has waited for so far.
  void reset_faults();
  // Told of the samples made and the time it took: whether of late so many of them waited for the disk that
  // asking the kernel for the next ones is worth its price.
  bool waits_for_disk(std::size_t samples, std::uint64_t ns);

  WorkerCounters counters;

 private:
  // A shard in use, with what its fields offer for bulk copies.
  struct OpenShard {
    std::int64_t source = 0;
    std::uint64_t first = 0;  // its records in the source: [first, end)
    std::uint64_t end = 0;
    std::shared_ptr<Shard> shard;
    std::vector<ColumnView> columns;  // a field of the plan
  };
  struct Place {
    OpenShard* open = nullptr;
    std::uint64_t record = 0;  // in the shard
  };

  OpenShard* open_shard(std::int64_t source, std::int64_t record);
  void trim_open();
  // Calls make(begin, end), which returns the first sample that failed or `end`, until it has met all samples
  // of [begin, end) that are to be made.
  template <typename Make>
  void each_run(Batch& batch, std::size_t begin, std::size_t end, Make&& make);
  std::size_t size_run(Batch& batch, std::size_t begin, std::size_t end);
  std::size_t fill_run(Batch& batch, std::size_t begin, std::size_t end);
  // Fills places_ with [begin, end); returns the first that failed, else end.
  std::size_t locate(Batch& batch, std::size_t begin, std::size_t end);
  // Calls make(sample, place) for [begin, end) where the field is valid; returns the first that failed, else
  // end.
  template <typename Make>
  std::size_t each(Batch& batch, std::size_t f, std::size_t begin, std::size_t end, Make&& make);
  std::size_t fill_column(Batch& batch, std::size_t f, std::size_t begin, std::size_t end);
  std::size_t fill_values(Batch& batch, std::size_t f, std::size_t begin, std::size_t end);
  std::size_t fill_images(Batch& batch, std::size_t f, std::size_t begin, std::size_t end);
  std::size_t compare_sizes(Batch& batch, std::size_t f, std::size_t begin, std::size_t end);
  [[noreturn]] void fail_size(const Batch& batch, std::size_t f, std::size_t sample, image::Size size);
  void fill_padded(const FieldPlan& field, const FieldOutput& output, std::size_t sample, Place place);
  void fail(Batch& batch, std::size_t sample, const FieldPlan* field);
  image::SampleKey key(const Batch& batch, std::size_t sample) const;
  Place place(std::size_t sample) const { return places_[sample - first_]; }

  const std::shared_ptr<const BatchPlan> plan_;
  const std::unique_ptr<image::Scratch> image_scratch_;
  std::vector<std::byte> scratch_;
  std::vector<std::uint32_t> schema_fields_;
  // By field: the sizes of the images first_, first_ + 1, … as they are stored; 0 x 0 where null.
  std::vector<std::vector<image::Size>> image_sizes_;
  std::vector<std::unique_ptr<OpenShard>> open_;  // by source and first record
  OpenShard* last_open_ = nullptr;
  std::vector<Place> places_;  // of samples first_, first_ + 1, …
  std::size_t first_ = 0;
  std::int64_t faults_ = 0;  // of the thread, when last asked
  std::int64_t recent_faults_ = 0;
  std::int64_t recent_samples_ = 0;
};

}  // namespace fastload

// The engine: threads that turn submitted batches of indices into batches, in order.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "core/batch.h"

namespace fastload {

struct EngineStats {
  std::uint64_t batches = 0;  // delivered
  std::uint64_t samples = 0;  // made
  std::uint64_t bytes = 0;    // written to batches
  double size_seconds = 0;    // summed over threads, as all that follow
  double read_seconds = 0;
  double image_seconds = 0;
  double idle_seconds = 0;
  double look_ahead_seconds = 0;
  double wait_seconds = 0;  // of the consumer
  std::uint64_t pool_bytes = 0;
  std::uint64_t pool_bytes_kept = 0;
  std::uint64_t in_flight = 0;
};

// One owner: submit() and next() are called by one thread at a time; close() may come from any, and from the
// child of a fork, where everything else throws Error (engine).
class Engine {
 public:
  // `threads` 0: next() works itself. `byte_budget` 0: no bound. Throws Error (engine) when threads cannot be
  // started.
  Engine(BatchPlan plan, std::size_t threads, std::uint64_t byte_budget);
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // Queues a batch; never blocks. `addresses`: where each field's array goes, null for the pool's memory.
  void submit(BatchIndices indices, std::vector<std::byte*> addresses = {});
  // Waits for the oldest batch. Throws what went wrong with it (the batch is gone then), and Error (engine)
  // when there is none, when the engine is closed, and when `timeout` seconds pass (0: no limit; the batch
  // stays). `interrupted` is called about every 50 ms, and may throw; the batch stays.
  std::shared_ptr<Batch> next(double timeout, const std::function<void()>& interrupted);
  EngineStats stats() const;
  // Batches submitted and not delivered.
  std::size_t in_flight() const;
  // Stops and joins the threads and drops what is in flight. Batches that were delivered stay.
  void close();

 private:
  struct State;
  void check_process() const;

  std::shared_ptr<State> state_;
  const std::uint64_t generation_;
};

}  // namespace fastload

// The batches in flight, in order, and who works on what. All blocking of the engine happens here.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>

#include "core/batch.h"

namespace fastload {

class Queue {
 public:
  // `byte_budget` bounds the batches that are admitted and not yet delivered (0: no bound); one always is.
  Queue(std::shared_ptr<Pool> pool, std::uint64_t byte_budget, std::size_t workers);

  // Adds a batch. Never blocks.
  void push(std::shared_ptr<Batch> batch);
  // The oldest batch with unclaimed samples, or null.
  std::shared_ptr<Batch> find();
  // The same, waiting for one; null once stopped.
  std::shared_ptr<Batch> wait_for_work();
  // Reports that the last sample of a stage is finished.
  void sized(Batch& batch);
  void filled(Batch& batch);

  // Waits until the oldest batch is done: false when `patience` is over first. Throws Error (engine) when
  // there is no batch or the queue is stopped.
  bool wait_for_front(std::chrono::nanoseconds patience);
  // Whether the oldest batch is done; throws as wait_for_front().
  bool front_done();
  // Takes the oldest batch out, which is done.
  std::shared_ptr<Batch> pop_front();

  // The kernel is asked for the records of batches numbered below this.
  void look_ahead_until(std::uint64_t number) { look_ahead_until_.store(number, std::memory_order_relaxed); }
  // A batch in flight for which that is still to be done, or null; given once.
  std::shared_ptr<Batch> claim_look_ahead();

  // Wakes everybody; nothing is found any more.
  void stop();
  // Once stopped: drops the batches in flight.
  void clear();
  bool stopped() const { return stopped_.load(std::memory_order_acquire); }
  std::size_t in_flight() const;

 private:
  std::shared_ptr<Batch> find_locked() const;
  void begin_filling(Batch& batch);
  // Admits batches in order, as far as the budget goes. True when there is work for others.
  bool admit_locked();
  void wake_one(std::unique_lock<std::mutex>& lock);
  void finish_locked(Batch& batch);
  const Batch& front_locked() const;

  const std::shared_ptr<Pool> pool_;
  const std::uint64_t byte_budget_;
  const std::size_t workers_;

  mutable std::mutex mutex_;
  std::condition_variable work_;
  std::condition_variable done_;
  std::deque<std::shared_ptr<Batch>> batches_;
  std::size_t admitted_ = 0;  // batches of the front of the deque
  std::uint64_t admitted_bytes_ = 0;
  std::size_t idle_ = 0;
  std::atomic<const Batch*> awaited_{nullptr};  // by the consumer
  std::atomic<bool> stopped_{false};
  std::atomic<std::uint64_t> look_ahead_until_{0};
};

}  // namespace fastload

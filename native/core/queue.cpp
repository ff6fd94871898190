#include "core/queue.h"

#include <algorithm>

namespace fastload {
namespace {

// What a worker takes at once: enough that taking is free, little enough that all help the oldest batch.
constexpr std::uint64_t claim_bytes = 64 << 10;
constexpr std::size_t most_samples = 1024;
constexpr std::size_t sizing_samples = 64;

}  // namespace

Queue::Queue(std::shared_ptr<Pool> pool, std::uint64_t byte_budget, std::size_t workers)
    : pool_(std::move(pool)), byte_budget_(byte_budget), workers_(std::max<std::size_t>(workers, 1)) {}

void Queue::push(std::shared_ptr<Batch> batch) {
  std::unique_lock lock(mutex_);
  if (stopped()) throw Error(ErrorKind::engine, "the engine is closed");
  Batch& added = *batch;
  batches_.push_back(std::move(batch));
  bool work = false;
  try {
    if (added.plan->fixed_size() || added.samples() == 0) {
      added.prepare(*pool_);
      added.measure();
      added.stage.store(Batch::Stage::waiting, std::memory_order_release);
      work = admit_locked();
    } else {
      added.prepare(*pool_);
      added.sizing.begin(added.samples(),
                         std::min(sizing_samples, (added.samples() + workers_ - 1) / workers_));
      work = true;
    }
  } catch (...) {
    added.fail(0, std::current_exception());
    added.stage.store(Batch::Stage::waiting, std::memory_order_release);
    work = admit_locked();
  }
  if (work) wake_one(lock);
}

std::shared_ptr<Batch> Queue::find() {
  std::lock_guard lock(mutex_);
  return find_locked();
}

std::shared_ptr<Batch> Queue::find_locked() const {
  if (stopped()) return nullptr;
  for (const auto& batch : batches_) {
    const auto stage = batch->stage.load(std::memory_order_acquire);
    if (stage == Batch::Stage::sizing && batch->sizing.unclaimed()) return batch;
    if (stage == Batch::Stage::filling && batch->filling.unclaimed()) return batch;
  }
  return nullptr;
}

std::shared_ptr<Batch> Queue::wait_for_work() {
  std::unique_lock lock(mutex_);
  while (!stopped()) {
    if (auto batch = find_locked()) {
      // One wakes the next, so that the consumer pays for one wake-up only.
      wake_one(lock);
      return batch;
    }
    ++idle_;
    work_.wait(lock);
    --idle_;
  }
  return nullptr;
}

void Queue::wake_one(std::unique_lock<std::mutex>& lock) {
  const bool somebody = idle_ > 0;
  lock.unlock();
  if (somebody) work_.notify_one();
}

void Queue::sized(Batch& batch) {
  try {
    batch.measure();
  } catch (...) {
    batch.fail(0, std::current_exception());
  }
  std::unique_lock lock(mutex_);
  batch.stage.store(Batch::Stage::waiting, std::memory_order_release);
  if (admit_locked()) wake_one(lock);
}

bool Queue::admit_locked() {
  bool work = false;
  while (admitted_ < batches_.size()) {
    Batch& batch = *batches_[admitted_];
    if (batch.stage.load(std::memory_order_acquire) != Batch::Stage::waiting) break;
    if (byte_budget_ > 0 && admitted_ > 0 && admitted_bytes_ + batch.bytes > byte_budget_) break;
    ++admitted_;
    admitted_bytes_ += batch.bytes;
    try {
      if (batch.limit() > 0) batch.allocate(*pool_);
    } catch (...) {
      batch.fail(0, std::current_exception());
    }
    if (batch.samples() == 0 || batch.limit() == 0) {
      finish_locked(batch);
    } else {
      begin_filling(batch);
      work = true;
    }
  }
  return work;
}

void Queue::begin_filling(Batch& batch) {
  const bool images = std::any_of(batch.plan->fields.begin(), batch.plan->fields.end(),
                                  [](const FieldPlan& field) { return field.kind == FieldKind::image; });
  std::size_t at_once = 1;
  if (!images) {
    const std::uint64_t sample_bytes = batch.bytes / batch.samples() + 1;
    at_once = std::clamp<std::size_t>(claim_bytes / sample_bytes, 1, most_samples);
    at_once = std::min(at_once, (batch.samples() + workers_ - 1) / workers_);
  }
  batch.filling.begin(batch.samples(), at_once);
  batch.stage.store(Batch::Stage::filling, std::memory_order_release);
}

void Queue::finish_locked(Batch& batch) {
  batch.stage.store(Batch::Stage::done, std::memory_order_seq_cst);
  if (awaited_.load(std::memory_order_seq_cst) == &batch) done_.notify_all();
}

void Queue::filled(Batch& batch) {
  batch.stage.store(Batch::Stage::done, std::memory_order_seq_cst);
  if (awaited_.load(std::memory_order_seq_cst) != &batch) return;
  // The consumer has looked at the stage and is about to sleep, or sleeps: the lock tells which.
  {
    std::lock_guard lock(mutex_);
  }
  done_.notify_all();
}

const Batch& Queue::front_locked() const {
  if (stopped()) throw Error(ErrorKind::engine, "the engine is closed");
  if (batches_.empty())
    throw Error(ErrorKind::engine, "no batch is in flight", {}, "submit one before next()");
  return *batches_.front();
}

bool Queue::front_done() {
  std::lock_guard lock(mutex_);
  return front_locked().stage.load(std::memory_order_acquire) == Batch::Stage::done;
}

bool Queue::wait_for_front(std::chrono::nanoseconds patience) {
  std::unique_lock lock(mutex_);
  const Batch& batch = front_locked();
  awaited_.store(&batch, std::memory_order_seq_cst);
  const auto deadline = std::chrono::steady_clock::now() + patience;
  const bool done = done_.wait_until(lock, deadline, [&] {
    return stopped() || batch.stage.load(std::memory_order_seq_cst) == Batch::Stage::done;
  });
  awaited_.store(nullptr, std::memory_order_relaxed);
  if (stopped()) throw Error(ErrorKind::engine, "the engine was closed while a batch was awaited");
  return done;
}

std::shared_ptr<Batch> Queue::pop_front() {
  std::unique_lock lock(mutex_);
  front_locked();
  std::shared_ptr<Batch> batch = std::move(batches_.front());
  batches_.pop_front();
  --admitted_;
  admitted_bytes_ -= batch->bytes;
  if (admit_locked()) wake_one(lock);
  return batch;
}

std::shared_ptr<Batch> Queue::claim_look_ahead() {
  const std::uint64_t until = look_ahead_until_.load(std::memory_order_relaxed);
  if (until == 0) return nullptr;
  std::lock_guard lock(mutex_);
  // The time is over: no more locks until the next wait for the disk.
  if (!batches_.empty() && batches_.front()->number >= until)
    look_ahead_until_.store(0, std::memory_order_relaxed);
  for (const auto& batch : batches_) {
    if (batch->number >= until) break;
    if (batch->looked_ahead || batch->stage.load(std::memory_order_relaxed) == Batch::Stage::done) continue;
    batch->looked_ahead = true;
    return batch;
  }
  return nullptr;
}

void Queue::stop() {
  {
    std::lock_guard lock(mutex_);
    stopped_.store(true, std::memory_order_release);
  }
  work_.notify_all();
  done_.notify_all();
}

void Queue::clear() {
  std::deque<std::shared_ptr<Batch>> dropped;
  std::lock_guard lock(mutex_);
  dropped.swap(batches_);
  admitted_ = 0;
  admitted_bytes_ = 0;
}

std::size_t Queue::in_flight() const {
  std::lock_guard lock(mutex_);
  return batches_.size();
}

}  // namespace fastload

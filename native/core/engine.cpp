#include "core/engine.h"

#include <pthread.h>
#include <signal.h>

#include <mutex>
#include <system_error>
#include <thread>

#include "core/batch_worker.h"
#include "core/queue.h"

namespace fastload {
namespace {

using std::chrono::steady_clock;

constexpr auto interrupt_interval = std::chrono::milliseconds(50);
// Once samples wait for the disk, so many batches are looked ahead for. Then it is seen whether they still
// do.
constexpr std::uint64_t look_ahead_batches = 32;

// What a worker does not report itself, such as a lack of memory for its scratch.
template <typename Work>
void guarded(Batch& batch, std::size_t sample, Work&& work) {
  try {
    work();
  } catch (...) {
    batch.fail(sample, std::current_exception());
  }
}

// Makes the next samples of `batch`; false when none are left in its present stage.
bool work_on(Batch& batch, BatchWorker& worker, Queue& queue) {
  std::size_t begin = 0;
  std::size_t end = 0;
  const Batch::Stage stage = batch.stage.load(std::memory_order_acquire);
  if (stage == Batch::Stage::sizing && batch.sizing.claim(begin, end)) {
    guarded(batch, begin, [&] { worker.size(batch, begin, end); });
    if (!batch.sizing.finish(end - begin)) return true;
    guarded(batch, 0, [&] { worker.size_images(batch); });
    queue.sized(batch);
    return false;
  }
  if (stage == Batch::Stage::filling && batch.filling.claim(begin, end)) {
    const std::uint64_t start = now_ns();
    guarded(batch, begin, [&] { worker.fill(batch, begin, end); });
    if (worker.waits_for_disk(end - begin, now_ns() - start)) {
      queue.look_ahead_until(batch.number + look_ahead_batches);
    }
    if (!batch.filling.finish(end - begin)) return true;
    queue.filled(batch);
  }
  return false;
}

// The records of batches in flight are asked for as soon as a read was seen to wait for the disk, and for
// some batches after it. While everything is in memory this costs nothing.
void look_ahead(BatchWorker& worker, Queue& queue) {
  while (const auto batch = queue.claim_look_ahead()) worker.look_ahead(*batch);
}

void run_worker(BatchWorker& worker, Queue& queue) {
  worker.reset_faults();
  std::uint64_t idle_since = now_ns();
  while (auto batch = queue.wait_for_work()) {
    worker.counters.idle_ns.add(now_ns() - idle_since);
    do {
      look_ahead(worker, queue);
    } while (!queue.stopped() && work_on(*batch, worker, queue));
    batch.reset();
    idle_since = now_ns();
  }
}

// Signals are the main thread's.
template <typename Run>
std::thread start_thread(Run run) {
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  struct Restore {
    const sigset_t& mask;
    ~Restore() { pthread_sigmask(SIG_SETMASK, &mask, nullptr); }
  } restore{before};
  return std::thread([run = std::move(run)] {
#ifdef __linux__
    pthread_setname_np(pthread_self(), "fastload");
#endif
    run();
  });
}

}  // namespace

struct Engine::State {
  State(BatchPlan batch_plan, std::size_t threads, std::uint64_t byte_budget)
      : plan(std::make_shared<const BatchPlan>(std::move(batch_plan))),
        queue(pool, byte_budget, threads),
        threaded(threads > 0) {
    for (std::size_t i = 0; i < std::max<std::size_t>(threads, 1); ++i) {
      workers.push_back(std::make_unique<BatchWorker>(plan));
    }
  }

  void stop() {
    queue.stop();
    std::vector<std::thread> stopping;
    {
      std::lock_guard lock(threads_mutex);
      stopping.swap(threads);
    }
    for (std::thread& thread : stopping) {
      // A worker that decodes in Python may run the collector, which may find that it was the engine's last
      // user.
      if (thread.get_id() == std::this_thread::get_id()) {
        thread.detach();
      } else {
        thread.join();
      }
    }
    queue.clear();
    pool->close();
  }

  const std::shared_ptr<Pool> pool = Pool::make();
  const std::shared_ptr<const BatchPlan> plan;
  Queue queue;
  std::vector<std::unique_ptr<BatchWorker>> workers;
  std::mutex threads_mutex;
  std::vector<std::thread> threads;
  const bool threaded;
  std::uint64_t submitted = 0;
  Counter delivered;
  Counter wait_ns;
};

Engine::Engine(BatchPlan plan, std::size_t threads, std::uint64_t byte_budget)
    : state_(std::make_shared<State>(std::move(plan), threads, byte_budget)), generation_(fork_generation()) {
  try {
    for (std::size_t i = 0; i < threads; ++i) {
      // Each thread holds the state, since one may outlive the engine (see State::stop).
      state_->threads.push_back(
          start_thread([state = state_, i] { run_worker(*state->workers[i], state->queue); }));
    }
  } catch (const std::system_error& error) {
    state_->stop();
    throw Error(ErrorKind::engine,
                "the system refuses to start " + std::to_string(threads) + " threads: " + error.what(), {},
                "use fewer num_workers");
  }
}

Engine::~Engine() {
  close();
  // A child has the memory of the parent's threads and locks, and not the threads: nothing here can be taken
  // down there, and the process does without.
  if (generation_ != fork_generation()) new std::shared_ptr<State>(std::move(state_));
}

void Engine::check_process() const {
  if (generation_ != fork_generation()) {
    throw Error(ErrorKind::engine,
                "this engine belongs to the process that was forked, and its threads stayed there", {},
                "make a new iterator in the child");
  }
}

void Engine::submit(BatchIndices indices, std::vector<std::byte*> addresses) {
  check_process();
  if (indices.positions.size() != indices.records.size() ||
      indices.sources.size() != indices.records.size()) {
    throw Error(ErrorKind::usage, "positions, sources and records differ in length");
  }
  state_->queue.push(
      std::make_shared<Batch>(state_->plan, std::move(indices), std::move(addresses), state_->submitted++));
}

std::shared_ptr<Batch> Engine::next(double timeout, const std::function<void()>& interrupted) {
  check_process();
  Queue& queue = state_->queue;
  const auto start = steady_clock::now();
  const std::uint64_t start_ns = now_ns();
  if (!state_->threaded) {
    auto checked = start;
    BatchWorker& worker = *state_->workers.front();
    worker.reset_faults();  // those of the caller's own work
    while (!queue.front_done()) {
      look_ahead(worker, queue);
      if (const auto batch = queue.find()) work_on(*batch, worker, queue);
      if (steady_clock::now() - checked < interrupt_interval) continue;
      interrupted();
      checked = steady_clock::now();
    }
  } else {
    while (!queue.wait_for_front(interrupt_interval)) {
      interrupted();
      if (timeout > 0 && std::chrono::duration<double>(steady_clock::now() - start).count() >= timeout) {
        throw Error(ErrorKind::engine,
                    "no batch came within the timeout of " + std::to_string(timeout) + " seconds");
      }
    }
    state_->wait_ns.add(now_ns() - start_ns);
  }
  auto batch = queue.pop_front();
  state_->delivered.add(1);
  batch->rethrow();
  return batch;
}

std::size_t Engine::in_flight() const {
  return generation_ == fork_generation() ? state_->queue.in_flight() : 0;
}

EngineStats Engine::stats() const {
  EngineStats stats;
  stats.batches = state_->delivered.get();
  stats.wait_seconds = 1e-9 * static_cast<double>(state_->wait_ns.get());
  for (const auto& worker : state_->workers) {
    const WorkerCounters& counters = worker->counters;
    stats.samples += counters.samples.get();
    stats.bytes += counters.bytes.get();
    stats.size_seconds += 1e-9 * static_cast<double>(counters.size_ns.get());
    stats.read_seconds += 1e-9 * static_cast<double>(counters.read_ns.get());
    stats.image_seconds += 1e-9 * static_cast<double>(counters.image_ns.get());
    stats.idle_seconds += 1e-9 * static_cast<double>(counters.idle_ns.get());
    stats.look_ahead_seconds += 1e-9 * static_cast<double>(counters.look_ahead_ns.get());
  }
  if (generation_ != fork_generation()) return stats;  // what follows takes locks
  stats.pool_bytes = state_->pool->bytes_in_use() + state_->pool->bytes_kept();
  stats.pool_bytes_kept = state_->pool->bytes_kept();
  stats.in_flight = in_flight();
  return stats;
}

void Engine::close() {
  if (generation_ == fork_generation()) state_->stop();
}

}  // namespace fastload

#include "core/pool.h"

#include <pthread.h>
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstdlib>

#include "core/error.h"

namespace fastload {
namespace {

constexpr std::size_t alignment = 64;
constexpr std::size_t huge_page = std::size_t{2} << 20;
// From here on a block is a mapping of its own, aligned for huge pages.
constexpr std::size_t map_from = std::size_t{1} << 20;
// "Recent" is this many allocations, and as many before.
constexpr std::uint64_t window = 64;

// Eight sizes to a power of two, so that at most an eighth is wasted and near sizes share blocks.
std::size_t round_up(std::size_t bytes) {
  const std::size_t step = std::max(alignment, std::bit_floor(std::max(bytes, std::size_t{1})) / 8);
  const std::size_t rounded = (bytes + step - 1) / step * step;
  if (rounded < map_from) return std::max(rounded, alignment);
  // Less than a huge page would get none.
  return rounded < huge_page ? huge_page : rounded;
}

std::byte* map(std::size_t capacity) {
  // One huge page more than needed, so that an aligned piece can be cut out.
  const std::size_t length = capacity + huge_page;
  void* base = mmap(nullptr, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (base == MAP_FAILED) return nullptr;
  auto* begin = static_cast<std::byte*>(base);
  const std::size_t head = (huge_page - reinterpret_cast<std::uintptr_t>(begin) % huge_page) % huge_page;
  if (head > 0) munmap(begin, head);
  if (huge_page - head > 0) munmap(begin + head + capacity, huge_page - head);
#ifdef MADV_HUGEPAGE
  madvise(begin + head, capacity, MADV_HUGEPAGE);
#endif
  return begin + head;
}

std::byte* take(std::size_t capacity) {
  if (capacity >= map_from) return map(capacity);
  return static_cast<std::byte*>(std::aligned_alloc(alignment, capacity));
}

void give_back(std::byte* data, std::size_t capacity) {
  if (capacity >= map_from) {
    munmap(data, capacity);
  } else {
    std::free(data);
  }
}

std::atomic<std::uint64_t> generation{0};

}  // namespace

std::uint64_t fork_generation() {
  [[maybe_unused]] static const int registered =
      pthread_atfork(nullptr, nullptr, [] { generation.fetch_add(1, std::memory_order_relaxed); });
  return generation.load(std::memory_order_relaxed);
}

Block::~Block() {
  if (pool_ != nullptr && data_ != nullptr) pool_->release(data_, capacity_);
}

std::shared_ptr<Pool> Pool::make() { return std::shared_ptr<Pool>(new Pool); }

Pool::~Pool() {
  for (const Free& block : free_) give_back(block.data, block.capacity);
}

Block Pool::allocate(std::size_t bytes) {
  const std::size_t wanted = round_up(bytes);
  std::vector<Free> victims;
  std::byte* data = nullptr;
  std::size_t capacity = wanted;
  {
    std::lock_guard lock(mutex_);
    roll_window();
    // The smallest kept block that is large enough and not more than twice as large as needed.
    auto best = free_.end();
    for (auto it = free_.begin(); it != free_.end(); ++it) {
      if (it->capacity < wanted || it->capacity / 2 > wanted) continue;
      if (best == free_.end() || it->capacity < best->capacity ||
          (it->capacity == best->capacity && it->stamp > best->stamp)) {
        best = it;
      }
    }
    if (best != free_.end()) {
      data = best->data;
      capacity = best->capacity;
      kept_ -= capacity;
      *best = free_.back();
      free_.pop_back();
    }
    in_use_ += capacity;
    peak_ = std::max(peak_, in_use_);
    trim(victims);
  }
  for (const Free& block : victims) give_back(block.data, block.capacity);
  if (data == nullptr) data = take(capacity);
  if (data == nullptr) {
    std::lock_guard lock(mutex_);
    in_use_ -= capacity;
    throw Error(ErrorKind::engine,
                "no memory for a batch: " + std::to_string(bytes) + " bytes were asked for", {},
                "use a smaller batch_size or prefetch_factor");
  }
  return Block(shared_from_this(), data, bytes, capacity);
}

void Pool::release(std::byte* data, std::size_t capacity) {
  // In a forked child the lock may be held by a thread that does not exist here.
  if (generation_ != fork_generation()) return;
  std::vector<Free> victims;
  {
    std::lock_guard lock(mutex_);
    in_use_ -= capacity;
    free_.push_back({data, capacity, ++stamp_});
    kept_ += capacity;
    trim(victims);
  }
  for (const Free& block : victims) give_back(block.data, block.capacity);
}

void Pool::close() {
  std::vector<Free> victims;
  {
    std::lock_guard lock(mutex_);
    closed_ = true;
    trim(victims);
  }
  for (const Free& block : victims) give_back(block.data, block.capacity);
}

void Pool::roll_window() {
  if (++allocations_ % window != 0) return;
  previous_peak_ = peak_;
  peak_ = in_use_;
}

void Pool::trim(std::vector<Free>& victims) {
  const std::size_t limit = closed_ ? 0 : std::max(peak_, previous_peak_);
  while (!free_.empty() && in_use_ + kept_ > limit) {
    const auto oldest = std::min_element(free_.begin(), free_.end(),
                                         [](const Free& a, const Free& b) { return a.stamp < b.stamp; });
    kept_ -= oldest->capacity;
    victims.push_back(*oldest);
    *oldest = free_.back();
    free_.pop_back();
  }
}

std::size_t Pool::bytes_in_use() const {
  std::lock_guard lock(mutex_);
  return in_use_;
}

std::size_t Pool::bytes_kept() const {
  std::lock_guard lock(mutex_);
  return kept_;
}

}  // namespace fastload

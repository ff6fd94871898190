// Batch memory: blocks that return to their pool when the last reader lets go, from any thread and at any
// time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

namespace fastload {

// How many times this process was forked from the one that loaded the library: objects that hold threads or
// locks remember it, and in a child leave both alone.
std::uint64_t fork_generation();

class Pool;

// Memory of one array, 64-byte aligned. Owns a pool's block, or points to memory that somebody else owns.
class Block {
 public:
  Block() = default;
  static Block foreign(std::byte* data, std::size_t bytes) { return Block(nullptr, data, bytes, 0); }
  Block(Block&& other) noexcept
      : pool_(std::move(other.pool_)), data_(other.data_), bytes_(other.bytes_), capacity_(other.capacity_) {
    other.data_ = nullptr;
    other.bytes_ = other.capacity_ = 0;
  }
  Block& operator=(Block&& other) noexcept {
    std::swap(pool_, other.pool_);
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    std::swap(capacity_, other.capacity_);
    return *this;
  }
  ~Block();

  std::byte* data() const { return data_; }
  std::size_t bytes() const { return bytes_; }
  template <typename T>
  T* as() const {
    return reinterpret_cast<T*>(data_);
  }

 private:
  friend class Pool;
  Block(std::shared_ptr<Pool> pool, std::byte* data, std::size_t bytes, std::size_t capacity)
      : pool_(std::move(pool)), data_(data), bytes_(bytes), capacity_(capacity) {}

  std::shared_ptr<Pool> pool_;
  std::byte* data_ = nullptr;
  std::size_t bytes_ = 0;     // what was asked for
  std::size_t capacity_ = 0;  // what the pool gave
};

// Thread-safe. Keeps returned blocks for reuse, but in all (in use and kept) never more than what was in use
// at once in the recent past, so that what a larger batch needed once is given back to the system.
class Pool : public std::enable_shared_from_this<Pool> {
 public:
  static std::shared_ptr<Pool> make();
  ~Pool();
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  // Contents are what the last user left. Throws Error (engine) when the system has no memory.
  Block allocate(std::size_t bytes);
  // Frees what is kept; blocks still in use are freed when they return.
  void close();

  std::size_t bytes_in_use() const;
  std::size_t bytes_kept() const;

 private:
  friend class Block;
  struct Free {
    std::byte* data;
    std::size_t capacity;
    std::uint64_t stamp;  // when it returned: the oldest goes first
  };

  Pool() = default;
  void release(std::byte* data, std::size_t capacity);
  void roll_window();
  void trim(std::vector<Free>& victims);

  mutable std::mutex mutex_;
  std::vector<Free> free_;
  std::size_t in_use_ = 0;
  std::size_t kept_ = 0;
  std::size_t peak_ = 0;           // of bytes in use, in this window of allocations
  std::size_t previous_peak_ = 0;  // in the window before
  std::uint64_t allocations_ = 0;
  std::uint64_t stamp_ = 0;
  bool closed_ = false;
  const std::uint64_t generation_ = fork_generation();
};

}  // namespace fastload

// Which values and blocks of a shard this process has verified: one bit each, shared by all threads.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <new>

namespace fastload {

class VerifiedBits {
 public:
  using Word = std::atomic<std::uint64_t>;
  static_assert(sizeof(Word) == 8 && Word::is_always_lock_free);

  // Throws std::bad_alloc.
  explicit VerifiedBits(std::uint64_t words) : words_(words) {
    if (words == 0) return;
    // calloc, since it leaves a large array to the kernel's zero pages: memory is taken where bits are set
    // only.
    memory_.reset(std::calloc(words, sizeof(Word)));
    if (memory_ == nullptr) throw std::bad_alloc();
  }

  std::uint64_t words() const { return words_; }
  Word* data() { return static_cast<Word*>(memory_.get()); }

  // Relaxed: a bit says something of bytes that never change, and publishes nothing.
  static bool test(const Word* words, std::uint64_t bit) {
    return (words[bit >> 6].load(std::memory_order_relaxed) >> (bit & 63) & 1) != 0;
  }
  static void set(Word* words, std::uint64_t bit) {
    words[bit >> 6].fetch_or(std::uint64_t{1} << (bit & 63), std::memory_order_relaxed);
  }

 private:
  struct Free {
    void operator()(void* memory) const { std::free(memory); }
  };
  std::uint64_t words_;
  std::unique_ptr<void, Free> memory_;
};

}  // namespace fastload

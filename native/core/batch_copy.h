// Copying the items of a column to a batch: bound by memory, so made for what the caches do.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace fastload {

class ItemCopier {
 public:
  // Batches of this size do not stay in the cache anyway; stores past it spare reading what they overwrite.
  // Measured on 114,660 B items, 46 MB batches: 21 GB/s against 15; on 3,072 B items in 1.6 MB batches they
  // lose, 13 against 16.
  static constexpr std::size_t stream_from = std::size_t{8} << 20;

  ItemCopier(std::uint64_t item_bytes, std::size_t batch_bytes)
      : bytes_(item_bytes),
        prefetched_(std::min<std::uint64_t>(item_bytes, 4096)),
        ahead_(item_bytes >= 2048  ? 1
               : item_bytes >= 256 ? 4
                                   : 16),
        stream_(item_bytes >= 4096 && batch_bytes >= stream_from) {}

  // How many items ahead to prefetch.
  std::size_t ahead() const { return ahead_; }

  void prefetch(const std::byte* from) const {
    // The hardware follows by itself within a page once it has seen a few lines, but not into the next item.
    for (std::uint64_t i = 0; i < prefetched_; i += 64) __builtin_prefetch(from + i);
  }

  void copy(std::byte* to, const std::byte* from) const {
    switch (bytes_) {
      case 1:
        *to = *from;
        return;
      case 2:
        std::memcpy(to, from, 2);
        return;
      case 4:
        std::memcpy(to, from, 4);
        return;
      case 8:
        std::memcpy(to, from, 8);
        return;
      default:
        break;
    }
    if (stream_) {
      stream(to, from);
    } else {
      std::memcpy(to, from, bytes_);
    }
  }

  // Makes streamed stores visible to other threads before anything that is stored next.
  void finish() const {
#if defined(__SSE2__)
    if (stream_) _mm_sfence();
#endif
  }

 private:
  void stream(std::byte* to, const std::byte* from) const {
#if defined(__SSE2__)
    const std::size_t head = (64 - reinterpret_cast<std::uintptr_t>(to) % 64) % 64;
    std::memcpy(to, from, head);
    std::size_t i = head;
    for (; i + 64 <= bytes_; i += 64) {
      const auto* source = reinterpret_cast<const __m128i*>(from + i);
      auto* target = reinterpret_cast<__m128i*>(to + i);
      const __m128i a = _mm_loadu_si128(source);
      const __m128i b = _mm_loadu_si128(source + 1);
      const __m128i c = _mm_loadu_si128(source + 2);
      const __m128i d = _mm_loadu_si128(source + 3);
      _mm_stream_si128(target, a);
      _mm_stream_si128(target + 1, b);
      _mm_stream_si128(target + 2, c);
      _mm_stream_si128(target + 3, d);
    }
    std::memcpy(to + i, from + i, bytes_ - i);
#else
    std::memcpy(to, from, bytes_);
#endif
  }

  const std::uint64_t bytes_;
  const std::uint64_t prefetched_;
  const std::size_t ahead_;
  const bool stream_;
};

}  // namespace fastload

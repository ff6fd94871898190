// Copying the items of a column to a batch: bound by memory, so made for what the caches do.
#pragma once

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
        ahead_(item_bytes >= 256 ? 3 : 16),
        stream_(item_bytes >= 4096 && batch_bytes >= stream_from) {}

  // How many items ahead to prefetch.
  std::size_t ahead() const { return ahead_; }

  // Only what the hardware cannot foresee: the beginning of the item, and that of its last page. Within a
  // page it follows by itself. Measured on 3,072 B items, CPU time of two threads: 0.43 us without, 0.43 with
  // every line, 0.34 with the first, 0.30 with these two.
  void prefetch(const std::byte* from) const {
    __builtin_prefetch(from);
    const auto last_page = (reinterpret_cast<std::uintptr_t>(from) + bytes_ - 1) & ~std::uintptr_t{4095};
    __builtin_prefetch(reinterpret_cast<const void*>(last_page));
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
  const std::size_t ahead_;
  const bool stream_;
};

}  // namespace fastload

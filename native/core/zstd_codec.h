// zstd, as docs/format.md uses it: one frame a value, which names its content size, with or without a
// dictionary.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "core/bytes.h"

struct ZSTD_DDict_s;
struct ZSTD_CDict_s;
struct ZSTD_CCtx_s;

namespace fastload {

// A dictionary, digested for decompression. Thread-safe.
class ZstdDictionary {
 public:
  // Throws std::bad_alloc. Any bytes are a dictionary; damaged ones of the trained kind throw Error (decode).
  explicit ZstdDictionary(Bytes content);
  const ZSTD_DDict_s* get() const { return dictionary_.get(); }

 private:
  struct Free {
    void operator()(ZSTD_DDict_s* dictionary) const;
  };
  std::unique_ptr<ZSTD_DDict_s, Free> dictionary_;
};

// The content size of `frame`; nothing where it is not one whole frame that names a size which its length
// makes possible. So memory may be taken for it.
std::optional<std::uint64_t> zstd_content_bytes(Bytes frame);

// Decompresses `frame` into `output`, whose size is its content size; `dictionary` may be null. Returns what
// is wrong with it, or null.
const char* zstd_decompress(Bytes frame, const ZstdDictionary* dictionary, std::span<std::byte> output);

// One field's compressor. Not thread-safe.
class ZstdCompressor {
 public:
  // `dictionary` may be empty. Throws Error (usage) for a dictionary or level that zstd refuses.
  ZstdCompressor(Bytes dictionary, int level);
  // The frame; valid until the next call. Throws Error (write).
  Bytes compress(Bytes value);

 private:
  struct Free {
    void operator()(ZSTD_CCtx_s* context) const;
  };
  std::unique_ptr<ZSTD_CCtx_s, Free> context_;
  std::vector<std::byte> frame_;
};

}  // namespace fastload

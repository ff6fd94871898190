#include "core/zstd_codec.h"

#include <zstd.h>

#include <new>
#include <string>

#include "core/directory.h"
#include "core/error.h"

namespace fastload {
namespace {

// A block yields at most 128 KiB and takes at least 4 bytes, so no frame is longer than this many times
// itself.
constexpr std::uint64_t max_ratio = 32768;

struct FreeContext {
  void operator()(ZSTD_DCtx* context) const { ZSTD_freeDCtx(context); }
};

ZSTD_DCtx* thread_context() {
  static thread_local const std::unique_ptr<ZSTD_DCtx, FreeContext> context(ZSTD_createDCtx());
  if (context == nullptr) throw std::bad_alloc();
  return context.get();
}

void check(std::size_t code, const char* what, ErrorKind kind) {
  if (ZSTD_isError(code)) throw Error(kind, std::string(what) + ": " + ZSTD_getErrorName(code));
}

}  // namespace

void ZstdDictionary::Free::operator()(ZSTD_DDict_s* dictionary) const { ZSTD_freeDDict(dictionary); }

ZstdDictionary::ZstdDictionary(Bytes content)
    : dictionary_(ZSTD_createDDict(content.data(), content.size())) {
  if (dictionary_ == nullptr) throw Error(ErrorKind::decode, "the zstd dictionary cannot be read");
}

std::optional<std::uint64_t> zstd_content_bytes(Bytes frame) {
  const unsigned long long size = ZSTD_getFrameContentSize(frame.data(), frame.size());
  if (size == ZSTD_CONTENTSIZE_UNKNOWN || size == ZSTD_CONTENTSIZE_ERROR) return std::nullopt;
  if (size > layout::max_value_bytes || size / max_ratio > frame.size()) return std::nullopt;
  // Also refuses skippable frames (which claim a size of 0), cut frames and bytes behind the frame.
  constexpr std::uint32_t frame_magic = 0xFD2FB528u;
  if (frame.size() < 4 || load<std::uint32_t>(frame.data()) != frame_magic) return std::nullopt;
  if (ZSTD_findFrameCompressedSize(frame.data(), frame.size()) != frame.size()) return std::nullopt;
  return size;
}

const char* zstd_decompress(Bytes frame, const ZstdDictionary* dictionary, std::span<std::byte> output) {
  const std::size_t size =
      ZSTD_decompress_usingDDict(thread_context(), output.data(), output.size(), frame.data(), frame.size(),
                                 dictionary == nullptr ? nullptr : dictionary->get());
  if (ZSTD_isError(size)) return ZSTD_getErrorName(size);
  if (size != output.size()) return "the frame holds another number of bytes than it names";
  return nullptr;
}

void ZstdCompressor::Free::operator()(ZSTD_CCtx_s* context) const { ZSTD_freeCCtx(context); }

ZstdCompressor::ZstdCompressor(Bytes dictionary, int level) : context_(ZSTD_createCCtx()) {
  if (context_ == nullptr) throw std::bad_alloc();
  check(ZSTD_CCtx_setParameter(context_.get(), ZSTD_c_compressionLevel, level), "zstd refuses the level",
        ErrorKind::usage);
  if (dictionary.empty()) return;
  check(ZSTD_CCtx_loadDictionary(context_.get(), dictionary.data(), dictionary.size()),
        "zstd refuses the dictionary", ErrorKind::usage);
}

Bytes ZstdCompressor::compress(Bytes value) {
  const std::size_t bound = ZSTD_compressBound(value.size());
  check(bound, "the value is too long for zstd", ErrorKind::write);
  if (frame_.size() < bound) frame_.resize(bound);
  const std::size_t size =
      ZSTD_compress2(context_.get(), frame_.data(), frame_.size(), value.data(), value.size());
  check(size, "zstd cannot compress the value", ErrorKind::write);
  return Bytes(frame_).first(size);
}

}  // namespace fastload

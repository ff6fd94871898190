// A whole file, mapped for reading.
#pragma once

#include <cstddef>
#include <string>

#include "core/bytes.h"

namespace fastload {

class MappedFile {
 public:
  MappedFile() = default;
  // Throws Error: shard_not_found where there is no such file, format where it is no regular file, engine
  // where the system refuses to open or map it. The error has `path` and nothing else of where.
  explicit MappedFile(const std::string& path);
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;

  Bytes bytes() const { return {data_, size_}; }
  // Asks the kernel to read [begin, begin + bytes), which lies in the file, in the background.
  void will_need(std::size_t begin, std::size_t bytes) const;

 private:
  const std::byte* data_ = nullptr;
  std::size_t size_ = 0;
};

}  // namespace fastload

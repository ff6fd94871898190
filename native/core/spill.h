// Sections that grow while a shard's heap streams out: in memory up to a budget, beyond it in a temporary
// file without a name, so that nothing is left of a killed writer.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "core/bytes.h"

namespace fastload {

class Spill {
 public:
  // `budget` bounds what all sections hold in memory. `folder` is where the temporary file is made.
  Spill(std::uint64_t budget, std::string folder) : budget_(budget), folder_(std::move(folder)) {}
  ~Spill() { clear(); }
  Spill(const Spill&) = delete;
  Spill& operator=(const Spill&) = delete;

  // The number of a new empty section.
  std::size_t add();
  // Throws Error (write) where the temporary file cannot be written.
  void append(std::size_t section, Bytes data);
  // `count` zero bytes.
  void append_zeros(std::size_t section, std::uint64_t count);
  // Hands the section's bytes to `take`, in order and in pieces of 1 MiB, the last one shorter.
  void read(std::size_t section, const std::function<void(Bytes)>& take) const;
  // Drops everything.
  void clear();

 private:
  struct Extent {
    std::uint64_t offset;
    std::uint64_t bytes;
  };
  struct Section {
    std::vector<std::byte> buffer;
    std::vector<Extent> extents;
  };

  void grown(std::uint64_t bytes);
  void move_to_file(Section& section);
  void open_file();
  [[noreturn]] void fail(int code) const;

  std::uint64_t budget_;
  std::string folder_;
  std::uint64_t buffered_ = 0;
  std::vector<Section> sections_;
  int file_ = -1;
  std::uint64_t file_bytes_ = 0;
};

}  // namespace fastload

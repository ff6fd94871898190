#include "core/spill.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <system_error>

#include "core/error.h"

namespace fastload {
namespace {

constexpr std::size_t piece_bytes = std::size_t{1} << 20;
constexpr std::uint64_t zero_chunk = 4096;

}  // namespace

std::size_t Spill::add() {
  sections_.emplace_back();
  return sections_.size() - 1;
}

void Spill::append(std::size_t section, Bytes data) {
  auto& buffer = sections_[section].buffer;
  buffer.insert(buffer.end(), data.begin(), data.end());
  grown(data.size());
}

void Spill::append_zeros(std::size_t section, std::uint64_t count) {
  static constexpr std::byte zeros[zero_chunk]{};
  for (; count != 0; count -= std::min(count, zero_chunk)) {
    append(section, {zeros, static_cast<std::size_t>(std::min(count, zero_chunk))});
  }
}

void Spill::grown(std::uint64_t bytes) {
  buffered_ += bytes;
  if (buffered_ <= budget_) return;
  if (file_ < 0) open_file();
  for (Section& section : sections_) move_to_file(section);
  buffered_ = 0;
}

void Spill::open_file() {
#ifdef O_TMPFILE
  file_ = ::open(folder_.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
#endif
  if (file_ >= 0) return;
  std::string name = folder_ + "/fastload-XXXXXX";
  file_ = ::mkstemp(name.data());
  if (file_ < 0) fail(errno);
  ::fcntl(file_, F_SETFD, FD_CLOEXEC);
  ::unlink(name.c_str());
}

void Spill::move_to_file(Section& section) {
  const std::uint64_t size = section.buffer.size();
  if (size == 0) return;
  for (std::uint64_t done = 0; done != size;) {
    const ssize_t written =
        ::pwrite(file_, section.buffer.data() + done, static_cast<std::size_t>(size - done),
                 static_cast<off_t>(file_bytes_ + done));
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) fail(written < 0 ? errno : ENOSPC);
    done += static_cast<std::uint64_t>(written);
  }
  section.extents.push_back({file_bytes_, size});
  file_bytes_ += size;
  section.buffer = {};  // the memory too: other sections may be the ones that grow
}

void Spill::read(std::size_t number, const std::function<void(Bytes)>& take) const {
  const Section& section = sections_[number];
  std::vector<std::byte> piece;
  const auto add_piece = [&](std::size_t bytes, const auto& fill) {
    const std::size_t held = piece.size();
    piece.resize(held + bytes);
    fill(piece.data() + held);
    if (piece.size() < piece_bytes) return;
    take(piece);
    piece.clear();
  };
  for (const Extent& extent : section.extents) {
    for (std::uint64_t done = 0; done != extent.bytes;) {
      const auto wanted =
          static_cast<std::size_t>(std::min<std::uint64_t>(extent.bytes - done, piece_bytes - piece.size()));
      add_piece(wanted, [&](std::byte* output) {
        for (std::size_t got = 0; got != wanted;) {
          const ssize_t count =
              ::pread(file_, output + got, wanted - got, static_cast<off_t>(extent.offset + done + got));
          if (count < 0 && errno == EINTR) continue;
          if (count < 0) fail(errno);
          if (count == 0)
            throw Error(ErrorKind::write, "the temporary file for columns has become shorter", {folder_});
          got += static_cast<std::size_t>(count);
        }
      });
      done += wanted;
    }
  }
  for (Bytes rest(section.buffer); !rest.empty();) {
    const std::size_t wanted = std::min(rest.size(), piece_bytes - piece.size());
    add_piece(wanted, [&](std::byte* output) { std::copy_n(rest.begin(), wanted, output); });
    rest = rest.subspan(wanted);
  }
  if (!piece.empty()) take(piece);
}

void Spill::clear() {
  sections_.clear();
  buffered_ = 0;
  if (file_ >= 0) ::close(file_);
  file_ = -1;
}

void Spill::fail(int code) const {
  throw Error(ErrorKind::write,
              "columns cannot be set aside in a temporary file: " + std::generic_category().message(code),
              {folder_}, "free space there");
}

}  // namespace fastload

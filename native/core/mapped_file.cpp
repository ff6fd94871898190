#include "core/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <limits>
#include <system_error>
#include <utility>

#include "core/error.h"

namespace fastload {
namespace {

class Descriptor {
 public:
  explicit Descriptor(int descriptor) : descriptor_(descriptor) {}
  ~Descriptor() {
    if (descriptor_ >= 0) ::close(descriptor_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int get() const { return descriptor_; }

 private:
  int descriptor_;
};

[[noreturn]] void fail(const char* what, int code, const std::string& path) {
  const std::string message = std::string(what) + ": " + std::generic_category().message(code);
  if (code == ENOENT || code == ENOTDIR) throw Error(ErrorKind::shard_not_found, message, {path});
  std::string hint;
  if (code == EMFILE || code == ENFILE) hint = "raise the limit of open files (ulimit -n)";
  if (code == ENOMEM) hint = "raise vm.max_map_count, or let fewer shards stay open";
  throw Error(ErrorKind::engine, message, {path}, hint);
}

}  // namespace

MappedFile::MappedFile(const std::string& path) {
  // O_NONBLOCK: opening a FIFO that somebody put there must not hang.
  const Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (file.get() < 0) fail("cannot open the file", errno, path);
  struct stat status{};
  if (::fstat(file.get(), &status) != 0) fail("cannot look at the file", errno, path);
  if (!S_ISREG(status.st_mode)) throw Error(ErrorKind::format, "not a regular file", {path});
  const auto size = static_cast<std::uint64_t>(status.st_size);
  if (size == 0) return;  // an empty mapping is not allowed, and not needed
  if (size > std::numeric_limits<std::size_t>::max() / 2)
    throw Error(ErrorKind::format, "absurdly large", {path});
  void* data = ::mmap(nullptr, static_cast<std::size_t>(size), PROT_READ, MAP_SHARED, file.get(), 0);
  if (data == MAP_FAILED) fail("cannot map the file", errno, path);
  data_ = static_cast<const std::byte*>(data);
  size_ = static_cast<std::size_t>(size);
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) ::munmap(const_cast<std::byte*>(data_), size_);
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

void MappedFile::will_need(std::size_t begin, std::size_t bytes) const {
  static const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  const std::size_t first = begin & ~(page - 1);
  // A hint: that it may fail is of no interest.
  (void)::madvise(const_cast<std::byte*>(data_) + first, bytes + (begin - first), MADV_WILLNEED);
}

}  // namespace fastload

// Memory that a Scratch keeps from image to image: grows, is never cleared.
#pragma once

#include <cstddef>
#include <cstdlib>
#include <memory>
#include <new>

namespace fastload::image {

template <typename T>
class Buffer {
 public:
  // Room for `count` elements and `Slack` more bytes, which SIMD code may read and write. Old contents are
  // lost where the memory grows.
  T* reserve(std::size_t count) {
    if (count > capacity_) {
      const std::size_t wanted =
          count + count / 4;  // images of a data set differ: do not grow at every record
      data_.reset();
      capacity_ = 0;
      // calloc: what SIMD code reads past the end is then zeros, not other data.
      data_.reset(static_cast<T*>(std::calloc(wanted * sizeof(T) + kSlack, 1)));
      if (data_ == nullptr) throw std::bad_alloc();
      capacity_ = wanted;
    }
    return data_.get();
  }
  T* data() { return data_.get(); }
  const T* data() const { return data_.get(); }

 private:
  static constexpr std::size_t kSlack = 128;
  struct Free {
    void operator()(T* pointer) const { std::free(pointer); }
  };
  std::unique_ptr<T, Free> data_;
  std::size_t capacity_ = 0;
};

}  // namespace fastload::image

// A Python buffer (bytes, memoryview, NumPy array, …) held for reading.
#pragma once

#include <nanobind/nanobind.h>

#include <cstddef>
#include <memory>
#include <span>

namespace fastload::bindings {

class ReadBuffer {
 public:
  // Raises the Python error (BufferError, TypeError) of objects that are no contiguous buffer.
  explicit ReadBuffer(nanobind::handle object) {
    if (PyObject_GetBuffer(object.ptr(), &view_, PyBUF_SIMPLE) != 0) throw nanobind::python_error();
  }
  ~ReadBuffer() { PyBuffer_Release(&view_); }
  ReadBuffer(const ReadBuffer&) = delete;
  ReadBuffer& operator=(const ReadBuffer&) = delete;

  std::span<const std::byte> bytes() const {
    return {static_cast<const std::byte*>(view_.buf), static_cast<std::size_t>(view_.len)};
  }

 private:
  Py_buffer view_{};
};

// The same for owners that threads without the GIL may let go of last.
inline std::shared_ptr<ReadBuffer> hold_buffer(nanobind::object object) {
  return {new ReadBuffer(object), [](ReadBuffer* buffer) {
            if (!Py_IsInitialized()) return;  // Python is gone, and the buffer's memory with it
            const nanobind::gil_scoped_acquire acquired;
            delete buffer;
          }};
}

}  // namespace fastload::bindings

// Turns fastload::Error into the class of fastload/errors.py.
#include "bindings/bindings.h"
#include "core/error.h"

namespace fastload::bindings {
namespace {

const char* class_name(ErrorKind kind) {
  switch (kind) {
    case ErrorKind::usage:
      return "UsageError";
    case ErrorKind::record:
      return "RecordError";
    case ErrorKind::format:
      return "FormatError";
    case ErrorKind::unsupported:
      return "UnsupportedFormatError";
    case ErrorKind::corruption:
      return "CorruptionError";
    case ErrorKind::shard_not_found:
      return "ShardNotFoundError";
    case ErrorKind::decode:
      return "DecodeError";
    case ErrorKind::write:
      return "WriteError";
    case ErrorKind::engine:
      return "EngineError";
  }
  return "FastloadError";
}

}  // namespace

nb::object exception_of(const Error& error) {
  const auto text = [](const std::string& value) -> nb::object {
    if (value.empty()) return nb::none();
    return nb::steal(PyUnicode_DecodeUTF8(value.data(), static_cast<Py_ssize_t>(value.size()), "replace"));
  };
  const auto number = [](std::int64_t value) -> nb::object {
    if (value < 0) return nb::none();
    return nb::int_(value);
  };
  const nb::object type = nb::module_::import_("fastload.errors").attr(class_name(error.kind));
  return type(text(error.what()), nb::arg("path") = text(error.where.path),
              nb::arg("shard") = text(error.where.shard), nb::arg("record") = number(error.where.record),
              nb::arg("field") = text(error.where.field), nb::arg("offset") = number(error.where.offset),
              nb::arg("hint") = text(error.hint));
}

void bind_errors(nb::module_&) {
  nb::register_exception_translator([](const std::exception_ptr& pointer, void*) {
    try {
      std::rethrow_exception(pointer);
    } catch (const Error& error) {
      try {
        const nb::object instance = exception_of(error);
        PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(instance.ptr())), instance.ptr());
      } catch (nb::python_error& failure) {
        failure.restore();
      }
    }
  });
}

}  // namespace fastload::bindings

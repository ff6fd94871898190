// _core.ShardWriter.
#include <nanobind/stl/optional.h>

#include <algorithm>
#include <deque>
#include <utility>

#include "bindings/bindings.h"
#include "bindings/buffer.h"
#include "bindings/schema.h"
#include "core/shard_writer.h"

namespace fastload::bindings {
namespace {

// Below this an append is shorter than handing the GIL over and back.
constexpr std::size_t release_bytes = std::size_t{1} << 16;

// Calls write(memoryview). The view is released afterwards, since its memory is the writer's: who keeps the
// view finds it closed, who keeps a buffer of it gets a BufferError.
void call_write(const nb::object& write, Bytes bytes) {
  const nb::gil_scoped_acquire acquired;
  auto* data = reinterpret_cast<char*>(const_cast<std::byte*>(bytes.data()));
  const nb::object view =
      nb::steal(PyMemoryView_FromMemory(data, static_cast<Py_ssize_t>(bytes.size()), PyBUF_READ));
  if (!view.is_valid()) throw nb::python_error();
  write(view);
  view.attr("release")();
}

std::string folder_or_default(const std::optional<std::string>& folder) {
  if (folder) return *folder;
  return nb::cast<std::string>(nb::module_::import_("tempfile").attr("gettempdir")());
}

void construct(ShardWriter* self, const FieldTuples& fields, const nb::bytes& schema_json, nb::object write,
               const nb::bytes& identity, int level, const std::vector<nb::bytes>& dictionaries,
               std::uint64_t spill_bytes, const std::optional<std::string>& spill_folder) {
  ShardWriterOptions options;
  if (identity.size() != options.identity.size()) throw Error(ErrorKind::usage, "an identity has 16 bytes");
  std::memcpy(options.identity.data(), identity.data(), options.identity.size());
  if (!dictionaries.empty() && dictionaries.size() != fields.size()) {
    throw Error(ErrorKind::usage, "give one dictionary for each field, or none at all");
  }
  for (const nb::bytes& dictionary : dictionaries) {
    const auto* data = static_cast<const std::byte*>(dictionary.data());
    options.dictionaries.emplace_back(data, data + dictionary.size());
  }
  options.level = level;
  options.spill_bytes = spill_bytes;
  options.spill_folder = folder_or_default(spill_folder);
  new (self) ShardWriter(
      std::make_shared<const SchemaSpec>(schema_of(fields, schema_json)),
      [write = std::move(write)](Bytes bytes) { call_write(write, bytes); }, std::move(options));
}

void append(ShardWriter& writer, const nb::iterable& record) {
  std::deque<ReadBuffer> buffers;  // a deque, since buffers do not move
  std::vector<std::optional<Bytes>> payloads;
  std::size_t total = 0;
  for (nb::handle payload : record) {
    payloads.emplace_back();
    if (payload.is_none()) continue;
    payloads.back() = buffers.emplace_back(payload).bytes();
    total += payloads.back()->size();
  }
  if (total < release_bytes) {
    writer.append(payloads);
  } else {
    const nb::gil_scoped_release released;
    writer.append(payloads);
  }
}

nb::tuple finish(ShardWriter& writer) {
  ShardExpectation result;
  {
    const nb::gil_scoped_release released;
    result = writer.finish();
  }
  return nb::make_tuple(result.records, result.file_bytes, result.index_bytes,
                        nb::bytes(result.checksum.data(), result.checksum.size()));
}

}  // namespace

void bind_writer(nb::module_& module) {
  nb::class_<ShardWriter>(module, "ShardWriter",
                          "Writes one shard through `write`, front to back. Used by one thread at a time.")
      .def("__init__", &construct, nb::arg("fields"), nb::arg("schema_json"), nb::arg("write"),
           nb::arg("identity"), nb::arg("level") = 3, nb::arg("dictionaries") = std::vector<nb::bytes>(),
           nb::arg("spill_bytes") = std::uint64_t{64} << 20, nb::arg("spill_folder") = nb::none())
      // Without a GIL, lock_self() keeps threads apart where it would.
      .def_prop_ro("records", &ShardWriter::records, nb::lock_self(), "Number of records so far.")
      .def_prop_ro("bytes_written", &ShardWriter::bytes_written, nb::lock_self(),
                   "About how large the file would be if it ended now.")
      .def("append", &append, nb::arg("payloads"), nb::lock_self(),
           "Add a record: a payload for each field, None for a null.")
      .def("finish", &finish, nb::lock_self(), nb::sig("def finish(self) -> tuple[int, int, int, bytes]"),
           "Write the rest; return (records, file bytes, index bytes, content checksum).");
}

}  // namespace fastload::bindings

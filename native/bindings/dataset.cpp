// _core.Dataset.
#include "core/dataset.h"

#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>

#include <utility>
#include <vector>

#include "bindings/bindings.h"
#include "bindings/buffer.h"
#include "bindings/schema.h"

namespace fastload::bindings {
namespace {

// Bytes of a shard as a read-only Python buffer that keeps the mapping.
struct MappedBytes {
  std::shared_ptr<Shard> shard;
  Bytes bytes;
};

int get_buffer(PyObject* self, Py_buffer* view, int flags) {
  const Bytes bytes = nb::inst_ptr<MappedBytes>(self)->bytes;
  return PyBuffer_FillInfo(view, self, const_cast<std::byte*>(bytes.data()),
                           static_cast<Py_ssize_t>(bytes.size()),
                           /*readonly=*/1, flags);
}

PyType_Slot mapped_bytes_slots[] = {{Py_bf_getbuffer, reinterpret_cast<void*>(get_buffer)}, {0, nullptr}};

Verify verify_of(const std::string& name) {
  if (name == "first") return Verify::first;
  if (name == "always") return Verify::always;
  if (name == "never") return Verify::never;
  throw Error(ErrorKind::usage, "verify is '" + name + "'", {}, "use 'first', 'always' or 'never'");
}

std::shared_ptr<Dataset> open(const std::string& folder, const FieldTuples& fields,
                              const nb::bytes& schema_json, nb::object table, const std::string& verify,
                              std::size_t max_open_shards) {
  auto schema = std::make_shared<const SchemaSpec>(schema_of(fields, schema_json));
  const std::shared_ptr<ReadBuffer> buffer = hold_buffer(std::move(table));
  const Verify mode = verify_of(verify);
  const nb::gil_scoped_release released;
  return Dataset::open(folder, std::move(schema), buffer->bytes(), buffer, mode, max_open_shards);
}

nb::object stored(Dataset& dataset, std::uint64_t record, std::uint32_t field) {
  MappedBytes mapped;
  {
    const nb::gil_scoped_release released;
    const auto place = dataset.locate(record);
    mapped = {place.shard, place.shard->stored(field, place.record)};
  }
  const nb::object owner = nb::cast(std::move(mapped));
  return nb::steal(PyMemoryView_FromObject(owner.ptr()));
}

nb::bytes value(Dataset& dataset, std::uint64_t record, std::uint32_t field) {
  std::vector<std::byte> scratch;
  Dataset::Place place;
  Bytes bytes;
  {
    const nb::gil_scoped_release released;
    place = dataset.locate(record);
    bytes = place.shard->value(field, place.record, scratch);
  }
  return nb::bytes(bytes.data(), bytes.size());
}

bool valid(Dataset& dataset, std::uint64_t record, std::uint32_t field) {
  const nb::gil_scoped_release released;
  const auto place = dataset.locate(record);
  return place.shard->valid(field, place.record);
}

}  // namespace

void bind_dataset(nb::module_& module) {
  nb::class_<MappedBytes>(module, "_MappedBytes", nb::type_slots(mapped_bytes_slots));
  nb::class_<Dataset>(
      module, "Dataset",
      "One split of a local dataset: its shard table, and its shards, mapped when first needed.")
      .def(nb::new_(&open), nb::arg("folder"), nb::arg("fields"), nb::arg("schema_json"), nb::arg("table"),
           nb::arg("verify") = "first", nb::arg("max_open_shards") = 1024)
      .def_prop_ro("records", &Dataset::records, "Number of records.")
      .def_prop_ro("shards", &Dataset::shards, "Number of shards.")
      .def_prop_ro("open_shards", &Dataset::open_shards, "Number of shards that are mapped for later use.")
      .def("valid", &valid, nb::arg("record"), nb::arg("field_index"),
           "Return whether the record has a value.")
      .def("stored", &stored, nb::arg("record"), nb::arg("field_index"),
           nb::sig("def stored(self, record: int, field_index: int) -> memoryview"),
           "Return the bytes of a column's item or of a heap value as stored, without copying them.")
      .def("value", &value, nb::arg("record"), nb::arg("field_index"),
           "Return the bytes of a column's item or of a heap value, decompressed.");
}

}  // namespace fastload::bindings

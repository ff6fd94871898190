// _core.Engine, for fastload/engine/native.py alone.
#include "core/engine.h"

#include <nanobind/ndarray.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cstring>
#include <optional>
#include <utility>

#include "bindings/bindings.h"

namespace fastload::bindings {
namespace {

using Int64Array = nb::ndarray<const std::int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

// A block as a writable Python buffer. The block returns to its pool when the last view dies.
struct Memory {
  Block block;
};

int get_buffer(PyObject* self, Py_buffer* view, int flags) {
  const Block& block = nb::inst_ptr<Memory>(self)->block;
  return PyBuffer_FillInfo(view, self, block.data(), static_cast<Py_ssize_t>(block.bytes()), /*readonly=*/0,
                           flags);
}

PyType_Slot memory_slots[] = {{Py_bf_getbuffer, reinterpret_cast<void*>(get_buffer)}, {0, nullptr}};

bool finalizing() {
#if PY_VERSION_HEX >= 0x030D0000
  return Py_IsFinalizing() != 0;
#else
  return _Py_IsFinalizing() != 0;
#endif
}

// What a Python exception says, as the decode error of a sample. Needs the GIL.
Error decode_error(const nb::python_error& error) {
  const nb::object value = nb::borrow(error.value());
  const auto text = [&](const char* name) {
    const nb::object part = nb::getattr(value, name, nb::none());
    return part.is_none() ? std::string() : std::string(nb::str(part).c_str());
  };
  if (nb::hasattr(value, "message")) return Error(ErrorKind::decode, text("message"), {}, text("hint"));
  const std::string type = nb::cast<std::string>(nb::borrow(error.type()).attr("__name__"));
  return Error(ErrorKind::decode, "decoding failed with " + type + ": " + nb::str(value).c_str());
}

image::Pixels pixels_of(const nb::object& array) {
  const auto pixels =
      nb::cast<nb::ndarray<const std::uint8_t, nb::ndim<3>, nb::c_contig, nb::device::cpu>>(array);
  image::Pixels out;
  out.size = {static_cast<std::int64_t>(pixels.shape(0)), static_cast<std::int64_t>(pixels.shape(1))};
  out.channels = static_cast<int>(pixels.shape(2));
  out.data.assign(pixels.data(), pixels.data() + pixels.size());
  return out;
}

// The decoder of what native code has no codec for. Called by workers, without the GIL.
image::Pixels decode_in_python(std::span<const std::byte> encoded, int channels) {
  // A thread that asks for the GIL of an interpreter that goes away would never return.
  if (!Py_IsInitialized() || finalizing()) throw Error(ErrorKind::engine, "the interpreter is shutting down");
  const nb::gil_scoped_acquire held;
  try {
    const nb::object view =
        nb::steal(PyMemoryView_FromMemory(const_cast<char*>(reinterpret_cast<const char*>(encoded.data())),
                                          static_cast<Py_ssize_t>(encoded.size()), PyBUF_READ));
    if (!view.is_valid()) throw nb::python_error();
    const nb::object decode = nb::module_::import_("fastload.transforms").attr("decode_image");
    return pixels_of(decode(view, channels == 1 ? "L" : "RGB"));
  } catch (const nb::python_error& error) {
    throw decode_error(error);
  }
}

template <typename T>
T get(const nb::dict& field, const char* key, T otherwise) {
  return field.contains(key) ? nb::cast<T>(field[key]) : otherwise;
}

std::shared_ptr<const image::Program> program_of(const nb::dict& field) {
  std::vector<image::OpSpec> ops;
  for (const nb::handle op : nb::cast<nb::list>(field["ops"])) {
    ops.push_back({nb::cast<std::string>(op[0]), nb::cast<std::vector<double>>(op[1])});
  }
  return image::Program::compile(ops, nb::cast<int>(field["channels"]),
                                 get<std::uint32_t>(field, "group", 0));
}

FieldPlan field_of(const nb::dict& field) {
  FieldPlan plan;
  plan.name = nb::cast<std::string>(field["name"]);
  plan.field = nb::cast<std::uint32_t>(field["field"]);
  plan.nullable = nb::cast<bool>(field["nullable"]);
  plan.boolean = get<bool>(field, "boolean", false);
  const auto kind = nb::cast<std::string>(field["kind"]);
  if (kind == "column") {
    plan.kind = FieldKind::column;
    plan.item_bytes = nb::cast<std::uint64_t>(field["item_bytes"]);
    plan.classes = get<std::uint64_t>(field, "classes", 0);
  } else if (kind == "image") {
    plan.kind = FieldKind::image;
    plan.program = program_of(field);
    if (field.contains("follows")) plan.follows = nb::cast<std::size_t>(field["follows"]);
  } else if (kind == "values") {
    plan.kind = FieldKind::values;
    plan.outer = get<std::uint64_t>(field, "outer", 1);
    plan.inner_bytes = get<std::uint64_t>(field, "inner_bytes", 1);
    plan.padded = get<bool>(field, "padded", false);
    plan.alignment = get<std::uint64_t>(field, "alignment", 1);
    plan.offset_unit = get<std::uint64_t>(field, "offset_unit", 1);
  } else {
    throw Error(ErrorKind::usage, "there is no kind of field called '" + kind + "'");
  }
  return plan;
}

// What is wrong with a plan is found here, since the workers take it as it is.
void check(const BatchPlan& plan) {
  for (const auto& source : plan.sources) {
    for (const FieldPlan& field : plan.fields) {
      const auto& fields = source->schema().fields;
      if (field.field >= fields.size() || fields[field.field].heap == (field.kind == FieldKind::column) ||
          (field.kind == FieldKind::column && fields[field.field].item_bytes != field.item_bytes) ||
          (field.classes > 0 && field.item_bytes != sizeof(std::int64_t))) {
        throw Error(ErrorKind::usage, "the plan and the dataset's schema differ", {.field = field.name});
      }
      if (field.follows &&
          (*field.follows >= plan.fields.size() || plan.fields[*field.follows].kind != FieldKind::image)) {
        throw Error(ErrorKind::usage, "the mask follows no image of the plan", {.field = field.name});
      }
      if (field.unit_bytes() == 0 || field.alignment == 0 || field.offset_unit == 0) {
        throw Error(ErrorKind::usage, "a size of the plan is 0", {.field = field.name});
      }
    }
  }
}

class PyEngine {
 public:
  PyEngine(BatchPlan plan, std::size_t threads, std::uint64_t byte_budget)
      : engine_(std::make_unique<Engine>(std::move(plan), threads, byte_budget)) {}
  ~PyEngine() { close(); }

  void close() {
    const nb::gil_scoped_release released;  // a worker may be decoding in Python
    engine_->close();
  }

  void submit(const Int64Array& positions, const Int64Array& sources, const Int64Array& records,
              std::uint32_t epoch, const std::vector<std::uintptr_t>& addresses) {
    const auto copy = [](const Int64Array& array) {
      return std::vector<std::int64_t>(array.data(), array.data() + array.size());
    };
    std::vector<std::byte*> pointers;
    for (const std::uintptr_t address : addresses) pointers.push_back(reinterpret_cast<std::byte*>(address));
    engine_->submit({copy(positions), copy(sources), copy(records), epoch}, std::move(pointers));
  }

  nb::tuple next(double timeout) {
    std::shared_ptr<Batch> batch;
    {
      const nb::gil_scoped_release released;
      batch = engine_->next(timeout, [] {
        const nb::gil_scoped_acquire held;
        if (PyErr_CheckSignals() != 0) throw nb::python_error();
      });
    }
    nb::list fields;
    for (FieldOutput& output : batch->outputs) {
      fields.append(nb::make_tuple(memory(output.data), memory(output.offsets), memory(output.lengths),
                                   memory(output.validity), output.size.height, output.size.width));
    }
    nb::list rejected;
    for (const Rejection& rejection : batch->rejections()) {
      rejected.append(nb::make_tuple(rejection.sample, exception_of(rejection.error)));
    }
    return nb::make_tuple(fields, rejected);
  }

  EngineStats stats() const { return engine_->stats(); }
  std::size_t in_flight() const { return engine_->in_flight(); }

 private:
  static nb::object memory(Block& block) {
    if (block.data() == nullptr) return nb::none();
    return nb::cast(Memory{std::move(block)});
  }

  std::unique_ptr<Engine> engine_;
};

PyEngine* make_engine(const nb::list& sources, const nb::list& fields, std::uint64_t seed,
                      std::size_t threads, std::uint64_t byte_budget, bool tolerant) {
  BatchPlan plan;
  plan.tolerant = tolerant;
  for (const nb::handle source : sources) plan.sources.push_back(nb::cast<std::shared_ptr<Dataset>>(source));
  for (const nb::handle field : fields) plan.fields.push_back(field_of(nb::cast<nb::dict>(field)));
  plan.seed = seed;
  plan.fallback = decode_in_python;
  check(plan);
  return new PyEngine(std::move(plan), threads, byte_budget);
}

nb::dict stats_of(const PyEngine& engine) {
  const EngineStats stats = engine.stats();
  nb::dict out;
  out["batches"] = stats.batches;
  out["samples"] = stats.samples;
  out["batch_bytes"] = stats.bytes;
  out["work_seconds"] = stats.size_seconds + stats.read_seconds + stats.image_seconds;
  out["size_seconds"] = stats.size_seconds;
  out["read_seconds"] = stats.read_seconds;
  out["image_seconds"] = stats.image_seconds;
  out["look_ahead_seconds"] = stats.look_ahead_seconds;
  out["idle_seconds"] = stats.idle_seconds;
  out["wait_seconds"] = stats.wait_seconds;
  out["pool_bytes"] = stats.pool_bytes;
  out["pool_bytes_kept"] = stats.pool_bytes_kept;
  out["in_flight"] = stats.in_flight;
  return out;
}

}  // namespace

void bind_engine(nb::module_& module) {
  nb::class_<Memory>(module, "_Memory", nb::type_slots(memory_slots));
  nb::class_<PyEngine>(module, "Engine", "Threads that make batches; see fastload/engine/native.py.")
      .def(nb::new_(&make_engine), nb::arg("sources"), nb::arg("fields"), nb::arg("seed"), nb::arg("threads"),
           nb::arg("byte_budget"), nb::arg("tolerant") = false)
      .def("submit", &PyEngine::submit, nb::arg("positions"), nb::arg("sources"), nb::arg("records"),
           nb::arg("epoch"), nb::arg("addresses"), nb::lock_self(), "Queue a batch.")
      .def("next", &PyEngine::next, nb::arg("timeout"),
           "Wait for the oldest batch. Return, a field: data, offsets, lengths, validity, height, width; and "
           "the samples that were left unmade, each with its error.")
      .def_prop_ro("in_flight", &PyEngine::in_flight, "Number of batches submitted and not delivered.")
      .def("stats", &stats_of, "Return the counters.")
      .def("close", &PyEngine::close, "Stop and join the threads.");
}

}  // namespace fastload::bindings

// What the binding files share: one function a concept, called by module.cpp.
#pragma once

#include <nanobind/nanobind.h>

#include "core/error.h"

namespace fastload::bindings {

namespace nb = nanobind;

// The error as Python has it. Needs the GIL.
nb::object exception_of(const Error& error);

void bind_errors(nb::module_& module);
void bind_crc32c(nb::module_& module);
void bind_sampling(nb::module_& module);
void bind_image(nb::module_& module);
void bind_jpeg(nb::module_& module);
void bind_dataset(nb::module_& module);
void bind_engine(nb::module_& module);
void bind_writer(nb::module_& module);

}  // namespace fastload::bindings

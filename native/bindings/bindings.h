// What the binding files share: one function a concept, called by module.cpp.
#pragma once

#include <nanobind/nanobind.h>

namespace fastload::bindings {

namespace nb = nanobind;

void bind_errors(nb::module_& module);
void bind_crc32c(nb::module_& module);
void bind_sampling(nb::module_& module);
void bind_image(nb::module_& module);
void bind_dataset(nb::module_& module);
void bind_engine(nb::module_& module);
void bind_writer(nb::module_& module);

}  // namespace fastload::bindings

#include "bindings/bindings.h"

NB_MODULE(_core, module) {
  using namespace fastload::bindings;
  module.doc() = "fastload's compiled core; imported only by fastload/_backend.py.";
  // Batches that are alive at interpreter exit are no leak worth a report on the user's terminal.
  nb::set_leak_warnings(false);
  bind_errors(module);
  bind_crc32c(module);
  bind_sampling(module);
  bind_image(module);
  bind_jpeg(module);
  bind_dataset(module);
  bind_writer(module);
  bind_engine(module);
}

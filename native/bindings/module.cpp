#include "bindings/bindings.h"

NB_MODULE(_core, module) {
  using namespace fastload::bindings;
  module.doc() = "fastload's compiled core; imported only by fastload/_backend.py.";
  bind_errors(module);
  bind_crc32c(module);
  bind_sampling(module);
  bind_dataset(module);
  bind_writer(module);
}

#include "bindings/bindings.h"

NB_MODULE(_core, module) {
  using namespace fastload::bindings;
  module.doc() = "fastload's compiled core; imported only by fastload/_backend.py.";
  bind_errors(module);
}

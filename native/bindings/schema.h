// The schema as Python hands it to the core.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <string>
#include <tuple>
#include <vector>

#include "core/shard.h"

namespace fastload::bindings {

// (name, heap, nullable, codec, item bytes, alignment) of each field.
using FieldTuples =
    std::vector<std::tuple<std::string, bool, bool, std::string, std::uint64_t, std::uint64_t>>;

inline SchemaSpec schema_of(const FieldTuples& fields, const nanobind::bytes& json) {
  SchemaSpec schema;
  schema.json.assign(json.c_str(), json.size());
  for (const auto& [name, heap, nullable, codec, item_bytes, alignment] : fields) {
    if (codec != "raw" && codec != "zstd") {
      throw Error(ErrorKind::usage, "unknown codec '" + codec + "'", {}, "use 'raw' or 'zstd'");
    }
    if (alignment != 1 && alignment != 8) throw Error(ErrorKind::usage, "an alignment is neither 1 nor 8");
    schema.fields.push_back(
        {name, heap, nullable, codec == "zstd" ? Codec::zstd : Codec::raw, item_bytes, alignment});
  }
  return schema;
}

}  // namespace fastload::bindings

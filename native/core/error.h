// The one exception of the native core. bindings/ turns it into the class of fastload/errors.py with the
// same name and fills the same attributes.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
#include <utility>

namespace fastload {

enum class ErrorKind {
  usage,            // UsageError
  record,           // RecordError
  format,           // FormatError
  unsupported,      // UnsupportedFormatError
  corruption,       // CorruptionError
  shard_not_found,  // ShardNotFoundError
  decode,           // DecodeError
  write,            // WriteError
  engine,           // EngineError
};

// Where an error occurred; empty strings and -1 where a part does not apply.
struct Where {
  std::string path{};
  std::string shard{};
  std::int64_t record = -1;
  std::string field{};
  std::int64_t offset = -1;
};

class Error : public std::runtime_error {
 public:
  Error(ErrorKind kind, const std::string& message, Where where = {}, std::string hint = {})
      : std::runtime_error(message), kind(kind), where(std::move(where)), hint(std::move(hint)) {}

  ErrorKind kind;
  Where where;
  std::string hint;
};

}  // namespace fastload

// What the native tests share: checks that count, and a summary.
#pragma once

#include <cstdio>
#include <exception>
#include <string>

#include "core/error.h"

namespace fastload::test {

inline int checks = 0;
inline int failures = 0;

inline void check(bool ok, const char* text, const char* file, int line) {
  ++checks;
  if (ok) return;
  ++failures;
  std::printf("%s:%d: failed: %s\n", file, line, text);
}

// Runs `function` and checks that it throws Error of `kind`; returns the error for a closer look.
template <typename Function>
Error expect_error(ErrorKind kind, Function&& function, const char* text, const char* file, int line) {
  try {
    function();
  } catch (const Error& error) {
    check(error.kind == kind, (std::string(text) + " threw another kind: " + error.what()).c_str(), file,
          line);
    return error;
  }
  check(false, (std::string(text) + " did not throw").c_str(), file, line);
  return Error(ErrorKind::usage, "");
}

// Names what was checked; the value of main().
inline int finish(const char* what) {
  std::printf("%s: %d checks, %d failures\n", what, checks, failures);
  return failures == 0 ? 0 : 1;
}

}  // namespace fastload::test

#define CHECK(condition) ::fastload::test::check(static_cast<bool>(condition), #condition, __FILE__, __LINE__)
#define CHECK_THROWS(kind, ...) \
  ::fastload::test::expect_error(kind, [&] { (void)(__VA_ARGS__); }, #__VA_ARGS__, __FILE__, __LINE__)

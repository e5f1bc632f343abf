// Keeps exceptions within a pack's library: the functions that its tables point at.
#pragma once

#include <cstdio>
#include <exception>
#include <stdexcept>
#include <string>

#include "library.h"

namespace kernelmint {

// A copy of `text` that lasts until the thread's next one.
inline const char* kept(const char* text) {
  thread_local char copy[512];
  std::snprintf(copy, sizeof(copy), "%s", text);
  return copy;
}

// `kBody`, a lambda of a Scope, as an IntExpression or a FloatExpression.
template <class Value, auto kBody>
Evaluated<Value> evaluated(const Scope& scope) noexcept {
  try {
    return {static_cast<Value>(kBody(scope)), nullptr};
  } catch (const std::exception& error) {
    return {0, kept(error.what())};
  }
}

// `kLaunch` as tables name it.
template <LaunchFunction kLaunch>
LaunchResult guarded(const void* args, const LaunchContext& context) noexcept {
  try {
    return kLaunch(args, context);
  } catch (const std::domain_error& error) {  // of the expressions of a generated launch
    return {kept(("the launch grid: " + std::string(error.what())).c_str())};
  } catch (const std::exception& error) {
    return {kept(error.what())};
  } catch (...) {
    return {"the kernel threw something that is no std::exception"};
  }
}

}  // namespace kernelmint

// Keeps exceptions within a pack's library: the functions that its tables point at.
#pragma once

#include <exception>

#include "arithmetic.h"
#include "library.h"
#include "message.h"

namespace kernelmint {

// `kBody`, a lambda of a Scope, as an IntExpression or a FloatExpression.
template <class Value, auto kBody>
Evaluated<Value> evaluated(const Scope& scope) noexcept {
  try {
    return {static_cast<Value>(kBody(scope)), nullptr};
  } catch (const std::exception& error) {
    return {0, message("%s", error.what())};
  }
}

// `kLaunch` as tables name it.
template <LaunchFunction kLaunch>
LaunchResult guarded(const void* args, const LaunchContext& context) noexcept {
  try {
    return kLaunch(args, context);
  } catch (const expression::NoValue& error) {  // thrown by the expressions of a generated launch
    return {message("the launch: %s", error.what())};
  } catch (const std::exception& error) {
    return {message("%s", error.what())};
  } catch (...) {
    return {"the kernel threw something that is not a std::exception"};
  }
}

}  // namespace kernelmint

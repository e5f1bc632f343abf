// A shim of PyTorch's header: the parts that foreign kernels use, without PyTorch. An exception
// that leaves a launch is the call's error.
#pragma once

#include <c10/macros/Macros.h>

#include <sstream>
#include <stdexcept>

namespace c10 {

struct Error : std::runtime_error {
  using std::runtime_error::runtime_error;
};

}  // namespace c10

namespace kernelmint::torch_shim {

template <class... Parts>
[[noreturn]] void fail(const Parts&... parts) {
  std::ostringstream text;
  (text << ... << parts);
  throw c10::Error(text.str());
}

}  // namespace kernelmint::torch_shim

#define TORCH_CHECK(condition, ...) \
  (C10_LIKELY(condition)            \
       ? void()                     \
       : kernelmint::torch_shim::fail("expected " #condition ". " __VA_OPT__(, ) __VA_ARGS__))

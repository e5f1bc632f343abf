// The runtime's errors, which module.cpp turns into the classes of runtime/errors.py.
#pragma once

#include <concepts>
#include <cstdio>
#include <stdexcept>
#include <string>
#include <string_view>

namespace kernelmint {

struct InvalidArgument : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// A tensor that the registered operator takes and a kernel does not: a tensor that a transform of
// torch.func wraps or that asks for a gradient, or a subclass with its own dispatch.
struct ThroughOperator : InvalidArgument {
  using InvalidArgument::InvalidArgument;
};

// A value that a kernel read and refused: the kernel has run, and may have written.
struct RejectedValue : InvalidArgument {
  using InvalidArgument::InvalidArgument;
};

struct TargetUnavailable : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// A pack's library that cannot be used.
struct LibraryError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

inline void append(std::string& out, std::string_view part) { out += part; }
inline void append(std::string& out, std::integral auto part) { out += std::to_string(part); }
inline void append(std::string& out, double part) {
  char digits[32];
  std::snprintf(digits, sizeof(digits), "%g", part);
  out += digits;
}

// The parts as one text. std::ostringstream is not used: formatting a number with it was seen to
// crash beside PyTorch 2.11's CUDA build.
template <class... Parts>
std::string text(const Parts&... parts) {
  std::string result;
  (append(result, parts), ...);
  return result;
}

}  // namespace kernelmint

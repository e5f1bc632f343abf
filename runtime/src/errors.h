// The runtime's errors, which module.cpp turns into those of runtime/errors.py.
#pragma once

#include <sstream>
#include <stdexcept>
#include <string>

namespace kernelmint {

struct InvalidArgument : std::runtime_error {
  using std::runtime_error::runtime_error;
};

struct TargetUnavailable : std::runtime_error {
  using std::runtime_error::runtime_error;
};

template <class... Parts>
std::string text(const Parts&... parts) {
  std::ostringstream stream;
  (stream << ... << parts);
  return stream.str();
}

}  // namespace kernelmint

// Texts of errors, for a boundary that no std::string crosses.
#pragma once

#include <cstdarg>
#include <cstdio>

namespace kernelmint {

// The formatted text, which lasts until the thread's next one.
__attribute__((format(printf, 1, 2))) inline const char* message(const char* format, ...) {
  thread_local char text[512];
  std::va_list values;
  va_start(values, format);
  std::vsnprintf(text, sizeof(text), format, values);
  va_end(values);
  return text;
}

}  // namespace kernelmint

// Python's lock around a kernel's launch.
#pragma once

#include <Python.h>
#include <cxxabi.h>
#include <unistd.h>

namespace kernelmint {

// Takes the lock back. If the interpreter is being finalized, Python before 3.14 ends a daemon
// thread here by pthread_exit. Unwinding then ends the process at the first function that may not
// throw, such as a destructor. The thread sleeps instead until the process is gone, as in Python
// 3.14.
inline void take_gil(PyThreadState* state) noexcept {
  try {
    PyEval_RestoreThread(state);
  } catch (const abi::__forced_unwind&) {
    while (true) pause();
  }
}

// Releases the lock for the object's lifetime.
class ReleaseGil {
 public:
  ReleaseGil() : state_(PyEval_SaveThread()) {}
  ~ReleaseGil() { take_gil(state_); }
  ReleaseGil(const ReleaseGil&) = delete;
  ReleaseGil& operator=(const ReleaseGil&) = delete;

 private:
  PyThreadState* state_;
};

// Holds the lock, which the thread has released, for the object's lifetime.
class HoldGil {
 public:
  explicit HoldGil(PyThreadState* state) { take_gil(state); }
  ~HoldGil() { PyEval_SaveThread(); }
  HoldGil(const HoldGil&) = delete;
  HoldGil& operator=(const HoldGil&) = delete;
};

}  // namespace kernelmint

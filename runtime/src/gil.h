// Python's lock around a kernel's launch.
#pragma once

#include <Python.h>
#include <cxxabi.h>
#include <unistd.h>

namespace kernelmint {

// Takes the lock back. Where the interpreter is being finalized, that ends a daemon thread: before
// Python 3.14 by pthread_exit, which unwinds the stack up to the first function that may not throw,
// a destructor for one, and there ends the process. Such a thread sleeps instead until the process
// is gone, as Python 3.14 has it do.
inline void take_gil(PyThreadState* state) noexcept {
  try {
    PyEval_RestoreThread(state);
  } catch (const abi::__forced_unwind&) {
    while (true) pause();
  }
}

// While it lives, the thread does not hold the lock.
class ReleaseGil {
 public:
  ReleaseGil() : state_(PyEval_SaveThread()) {}
  ~ReleaseGil() { take_gil(state_); }
  ReleaseGil(const ReleaseGil&) = delete;
  ReleaseGil& operator=(const ReleaseGil&) = delete;

 private:
  PyThreadState* state_;
};

// While it lives, a thread that has released the lock holds it.
class HoldGil {
 public:
  explicit HoldGil(PyThreadState* state) { take_gil(state); }
  ~HoldGil() { PyEval_SaveThread(); }
  HoldGil(const HoldGil&) = delete;
  HoldGil& operator=(const HoldGil&) = delete;
};

}  // namespace kernelmint

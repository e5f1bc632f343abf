// Calls of a generated `__call__` that reach the extension without a frame of Python's.
#pragma once

#include <nanobind/nanobind.h>

#include <vector>

namespace kernelmint {

namespace nb = nanobind;

// A Python method's parameters other than self.
class Signature {
 public:
  explicit Signature(nb::handle method);  // a function without *args and **kwargs

  // The kept signature of a method's code, which the methods of a family's kernels share.
  static const Signature& of(nb::handle method);

  int size() const { return static_cast<int>(names_.size()); }

  // Fills `values` with the arguments of a vectorcall after self, or defaults, in the order of the
  // signature; borrowed. Returns false if a name is unknown, or an argument is missing or passed
  // twice: Python's own call then raises the error.
  bool bind(PyObject* const* given, Py_ssize_t count, PyObject* names, PyObject** values) const;

 private:
  Py_ssize_t num_positional_;
  std::vector<nb::object> names_, defaults_;  // invalid: no default
};

using Vectorcall = PyObject* (*)(PyObject* function, PyObject* const* arguments, std::size_t flags,
                                 PyObject* names);

// Sets the function that calls of a Python function run. Returns the previous function, or null if
// this Python has no way to set it.
Vectorcall set_vectorcall(nb::handle function, Vectorcall call);

// Sets the Python error for the C++ exception in flight, as nanobind does. Returns null.
PyObject* raise_current();

}  // namespace kernelmint

// Python functions that a call asks, each called by its shortest way.
#pragma once

#include <nanobind/nanobind.h>

namespace kernelmint {

namespace nb = nanobind;

// Returns the object, or throws the Python error that is set.
nb::object checked(PyObject* result);

nb::object call_with(const nb::object& callee, PyObject* argument);

// An item of a tuple or a list. Throws IndexError if another thread has shortened the list.
inline nb::object item_of(PyObject* items, Py_ssize_t i) {
  if (PyTuple_Check(items)) return nb::borrow(PyTuple_GetItem(items, i));
#if defined(NB_FREE_THREADED)
  return checked(PyList_GetItemRef(items, i));
#else
  return nb::borrow(PyList_GetItem(items, i));
#endif
}

// A Python function without arguments, or a method with only self. Calls go straight to the C
// function if there is one, since looking the function up takes longer than running it.
class Function {
 public:
  Function() = default;
  explicit Function(nb::object callee);
  nb::object operator()() const;

 private:
  nb::object callee_;
  PyCFunction function_ = nullptr;
  PyObject* self_ = nullptr;
};

class Method {
 public:
  Method() = default;
  Method(const nb::object& instance, const char* name);  // a method of the instance's type
  nb::object operator()(PyObject* self) const;

 private:
  nb::object method_;
  PyCFunction function_ = nullptr;
};

// An attribute that is a descriptor of the instance's type.
class Attribute {
 public:
  Attribute() = default;
  Attribute(const nb::object& instance, const char* name);
  nb::object operator()(PyObject* self) const;
  nb::object find(PyObject* self) const;  // invalid if getting it raises an error
  bool is_there(PyObject* self) const { return find(self).is_valid(); }

 private:
  nb::object descriptor_;
  descrgetfunc get_ = nullptr;
};

}  // namespace kernelmint

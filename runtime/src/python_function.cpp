#include "python_function.h"

namespace kernelmint {
namespace {

// The C function of an object that is a function without arguments; otherwise null.
PyCFunction function_without_arguments(const nb::object& object) {
  const bool is_one =
      PyCFunction_CheckExact(object.ptr()) && PyCFunction_GetFlags(object.ptr()) == METH_NOARGS;
  return is_one ? PyCFunction_GetFunction(object.ptr()) : nullptr;
}

}  // namespace

nb::object checked(PyObject* result) {
  if (result == nullptr) throw nb::python_error();
  return nb::steal(result);
}

nb::object call_with(const nb::object& callee, PyObject* argument) {
  return checked(PyObject_Vectorcall(callee.ptr(), &argument, 1, nullptr));
}

Function::Function(nb::object callee) : callee_(std::move(callee)) {
  function_ = function_without_arguments(callee_);
  if (function_ != nullptr) self_ = PyCFunction_GetSelf(callee_.ptr());
}

nb::object Function::operator()() const {
  return checked(function_ != nullptr ? function_(self_, nullptr)
                                      : PyObject_CallNoArgs(callee_.ptr()));
}

Method::Method(const nb::object& instance, const char* name)
    : method_(instance.type().attr(name)),
      function_(function_without_arguments(instance.attr(name))) {}

nb::object Method::operator()(PyObject* self) const {
  return checked(function_ != nullptr ? function_(self, nullptr)
                                      : PyObject_Vectorcall(method_.ptr(), &self, 1, nullptr));
}

Attribute::Attribute(const nb::object& instance, const char* name)
    : descriptor_(instance.type().attr(name)),
      get_(reinterpret_cast<descrgetfunc>(
          PyType_GetSlot(Py_TYPE(descriptor_.ptr()), Py_tp_descr_get))) {
  if (get_ == nullptr) throw nb::type_error("a tensor's attribute is not a descriptor");
}

nb::object Attribute::operator()(PyObject* self) const {
  return checked(get_(descriptor_.ptr(), self, reinterpret_cast<PyObject*>(Py_TYPE(self))));
}

nb::object Attribute::find(PyObject* self) const {
  PyObject* const found = get_(descriptor_.ptr(), self, reinterpret_cast<PyObject*>(Py_TYPE(self)));
  if (found == nullptr) PyErr_Clear();
  return nb::steal(found);
}

}  // namespace kernelmint

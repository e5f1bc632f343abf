#include "wrong_calls.h"

#include <algorithm>

namespace kernelmint {
namespace {

ternaryfunc call_in_python;  // what every class has whose __call__ is a Python function
PyObject* explain_call;

// An error of a line of the function, or of what it calls, has a traceback by now. One without came
// before the first line: the arguments do not suit the parameters.
PyObject* call(PyObject* self, PyObject* arguments, PyObject* options) {
  PyObject* result = call_in_python(self, arguments, options);
  if (result != nullptr || !PyErr_ExceptionMatches(PyExc_TypeError)) return result;
  nb::python_error error;
  if (error.traceback().is_valid()) {
    error.restore();
    return nullptr;
  }
  const nb::dict none;
  PyObject* named = options == nullptr ? none.ptr() : options;
  const nb::object message =
      nb::steal(PyObject_CallFunctionObjArgs(explain_call, self, arguments, named, nullptr));
  if (message.is_valid()) PyErr_SetObject(PyExc_TypeError, message.ptr());
  return nullptr;
}

// The stable ABI reads a type's slots and writes none. The place of this one is found by what it
// holds, which no other slot of the type does.
ternaryfunc* call_slot(nb::type_object type) {
  const auto holds = reinterpret_cast<ternaryfunc>(
      PyType_GetSlot(reinterpret_cast<PyTypeObject*>(type.ptr()), Py_tp_call));
  const auto size = nb::cast<std::size_t>(nb::handle(&PyType_Type).attr("__basicsize__"));
  auto* slots = reinterpret_cast<ternaryfunc*>(type.ptr());
  ternaryfunc* const end = slots + size / sizeof(ternaryfunc);
  ternaryfunc* const found = std::find(slots, end, holds);
  if (found == end) throw nb::type_error("the type has no call of its own");
  return found;
}

}  // namespace

void explain_wrong_calls(nb::type_object type, nb::callable explain) {
  ternaryfunc* slot = call_slot(type);
  if (*slot == call) return;
  call_in_python = *slot;
  explain_call = explain.release().ptr();  // lives as long as the process
  *slot = call;
}

}  // namespace kernelmint

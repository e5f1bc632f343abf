#include "wrong_calls.h"

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

}  // namespace

void explain_wrong_calls(nb::type_object type, nb::callable explain) {
  auto* slots = reinterpret_cast<PyTypeObject*>(type.ptr());
  if (slots->tp_call == call) return;
  call_in_python = slots->tp_call;
  explain_call = explain.release().ptr();  // lives as long as the process
  slots->tp_call = call;
}

}  // namespace kernelmint

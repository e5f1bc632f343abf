// The scalars of a call: Python's values as C++ values, and defaults.
#include <algorithm>
#include <cmath>

#include "kernel_call.h"

namespace kernelmint {
namespace {

// The name of `dtype` if it does not hold the value; otherwise null.
const char* too_narrow_type(Dtype dtype, const ScalarValue& value) {
  using Float = std::numeric_limits<float>;
  using Int = std::numeric_limits<std::int32_t>;
  if (dtype == Dtype::f32 && std::isfinite(value.floating) &&
      std::fabs(value.floating) > Float::max())
    return "32-bit floats";
  if (dtype == Dtype::i32 && (value.integer > Int::max() || value.integer < Int::min()))
    return "32-bit integers";
  return nullptr;
}

}  // namespace

// Scalars are converted before tensors are read: converting may run Python code, which may resize a
// tensor.
void Kernel::convert_scalars(Call& call, PyObject* const* scalars) const {
  for (int i = 0; i < family_.num_scalars; ++i) {
    const ScalarArgument& argument = family_.scalars[i];
    const nb::handle value = scalars[i];
    call.is_default[i] = value.is_none();
    if (!call.is_default[i] && argument.length > 0)
      convert_list(call, i, value);
    else if (!call.is_default[i])
      call.scalars[slots_[i]] = converted(call, argument, value);
    else if (argument.required)
      throw InvalidArgument(
          text(argument.name, ": got None, expected a value: there is no default"));
  }
}

void Kernel::set_default_scalars(Call& call) const {
  for (int i = 0; i < family_.num_scalars; ++i) {
    if (!call.is_default[i]) continue;
    const ScalarArgument& argument = family_.scalars[i];
    ScalarValue& value = call.scalars[slots_[i]];
    std::string wrong;
    const char* error;
    if (is_floating(argument.dtype)) {
      const Evaluated<double> result = argument.default_floating(scope(call));
      value.floating = result.value;
      error = result.error;
      if (!std::isfinite(value.floating)) wrong = "is not a finite number";
    } else {
      const Evaluated<std::int64_t> result = argument.default_integer(scope(call));
      value.integer = result.value;
      error = result.error;
    }
    if (error != nullptr)
      wrong = text("cannot be computed: ", error);
    else if (const char* narrow = too_narrow_type(argument.dtype, value))
      wrong = text("is more than ", narrow, " hold");
    if (!wrong.empty())
      throw InvalidArgument(text(argument.name, ": its default, ", argument.text, ", ", wrong,
                                 here(argument.text, call)));
    std::fill_n(&value, std::max(argument.length, 1), value);
  }
}

void Kernel::convert_list(Call& call, int index, nb::handle values) const {
  const ScalarArgument& argument = family_.scalars[index];
  const bool is_list = PyList_Check(values.ptr());
  if (!is_list && !PyTuple_Check(values.ptr()))
    throw InvalidArgument(text(argument.name, ": got ", type_text(values), ", expected a list or ",
                               "a tuple of ", argument.length, " numbers"));
  const nb::object items =
      checked(is_list ? PyList_AsTuple(values.ptr())
                      : PyTuple_GetSlice(values.ptr(), 0, PyTuple_Size(values.ptr())));
  const Py_ssize_t length = PyTuple_Size(items.ptr());
  if (length != argument.length)
    throw InvalidArgument(text(argument.name, ": got ", length,
                               length == 1 ? " number" : " numbers", ", expected ",
                               argument.length));
  for (int n = 0; n < argument.length; ++n)
    as_element(argument, n, [&](const ScalarArgument& element) {
      call.scalars[slots_[index] + n] = converted(call, element, NB_TUPLE_GET_ITEM(items.ptr(), n));
    });
}

// The number in a tensor on the CPU or in a NumPy array without dimensions. The caller refuses a
// value that is not a Python number.
nb::object Kernel::held_number(const Call& call, const char* name, nb::handle value,
                               const char* expected) const {
  const bool is_tensor = call.torch.is_tensor(value.ptr());
  if (is_tensor) {
    TensorInfo tensor;
    call.torch.read(value.ptr(), name, tensor);
    if (tensor.rank != 0)
      throw InvalidArgument(text(name, ": got a tensor of shape ", shape_of(tensor.object),
                                 ", expected ", expected, ", or a tensor without dimensions"));
    if (tensor.device.type != dlpack::kCpu)
      throw InvalidArgument(text(name, ": got a tensor on ",
                                 attribute_text(tensor.object, "device"), ", expected ", expected,
                                 ", or a tensor on the CPU: a call does not wait for a device; "
                                 "pass its .item()"));
    if (const std::string wrong = no_gradient(call, name, tensor); !wrong.empty())
      throw InvalidArgument(wrong);
  }
  const bool is_number = is_tensor || (nb::hasattr(value, "ndim") && nb::hasattr(value, "item") &&
                                       value.attr("ndim").equal(nb::int_(0)));
  nb::object number = is_number ? value.attr("item")() : nb::none();
  if (!PyBool_Check(number.ptr()) && !PyLong_Check(number.ptr()) && !PyFloat_Check(number.ptr()))
    throw InvalidArgument(text(name, ": got ", type_text(value), ", expected ", expected));
  return number;
}

ScalarValue Kernel::converted(const Call& call, const ScalarArgument& argument,
                              nb::handle value) const {
  ScalarValue result;
  const auto held = [&](const char* expected) {
    return converted(call, argument, held_number(call, argument.name, value, expected));
  };
  if (argument.values != nullptr) {
    if (!PyUnicode_Check(value.ptr()))
      throw InvalidArgument(text(argument.name, ": got ", type_text(value), ", expected a str"));
    for (int i = 0; i < argument.num_values; ++i)
      if (PyUnicode_CompareWithASCIIString(value.ptr(), argument.values[i]) == 0) {
        result.integer = i;
        return result;
      }
    nb::list values;
    for (int i = 0; i < argument.num_values; ++i) values.append(argument.values[i]);
    throw InvalidArgument(to_text(
        nb::module_::import_("runtime.errors").attr("unlisted")(argument.name, value, values)));
  }
  if (argument.dtype == Dtype::boolean) {
    if (!PyBool_Check(value.ptr())) return held("a bool");
    result.integer = value.ptr() == Py_True;
    return result;
  }
  const bool is_number = !PyBool_Check(value.ptr()) && !call.torch.is_tensor(value.ptr());
  if (is_floating(argument.dtype)) {
    PyTypeObject* type = Py_TYPE(value.ptr());
    if (!is_number || (PyType_GetSlot(type, Py_nb_float) == nullptr &&
                       PyType_GetSlot(type, Py_nb_index) == nullptr))
      return held("a float");
    result.floating = PyFloat_AsDouble(value.ptr());
    if (result.floating == -1.0 && PyErr_Occurred())
      throw InvalidArgument(text(argument.name, ": got ", shown(value),
                                 ", expected a value that a float holds (", take_python_error(),
                                 ")"));
    if (const char* narrow = too_narrow_type(argument.dtype, result))
      throw InvalidArgument(text(argument.name, ": got ", result.floating,
                                 ", expected a value that ", narrow, " hold"));
    return result;
  }
  if (!is_number || !PyIndex_Check(value.ptr())) return held("an int");
  const nb::object integer = nb::steal(PyNumber_Index(value.ptr()));
  if (!integer.is_valid())
    throw InvalidArgument(text(argument.name, ": got ", shown(value), ", expected an int (",
                               take_python_error(), ")"));
  int overflow = 0;
  result.integer = PyLong_AsLongLongAndOverflow(integer.ptr(), &overflow);
  const char* narrow = too_narrow_type(argument.dtype, result);
  if (overflow != 0) narrow = argument.dtype == Dtype::i32 ? "32-bit integers" : "64-bit integers";
  if (narrow != nullptr)
    throw InvalidArgument(
        text(argument.name, ": got ", shown(integer), ", expected a value that ", narrow, " hold"));
  return result;
}

}  // namespace kernelmint

#include "operator_call.h"

#include <algorithm>

namespace kernelmint {
namespace {

constexpr std::size_t kMostKeys = 16;  // kept sets of dispatch keys; a device has two

PyObject* item(nb::handle tuple, std::size_t i) { return NB_TUPLE_GET_ITEM(tuple.ptr(), i); }

// The value of an option, or None.
nb::handle option(nb::handle options, PyObject* name) {
  if (!options.is_valid()) return Py_None;
  PyObject* const value = PyDict_GetItemWithError(options.ptr(), name);
  return value == nullptr ? Py_None : value;
}

bool is_list(nb::handle value) {
  return PyTuple_CheckExact(value.ptr()) || PyList_CheckExact(value.ptr());
}

template <class Condition>
bool any_of(nb::handle list, Condition holds) {
  const bool is_tuple = PyTuple_CheckExact(list.ptr());
  const Py_ssize_t size = is_tuple ? PyTuple_Size(list.ptr()) : PyList_Size(list.ptr());
  for (Py_ssize_t i = 0; i < size; ++i)
    if (holds(item_of(list.ptr(), i).ptr())) return true;
  return false;
}

template <class Value>
nb::tuple values_of(const nb::tuple& names, Value value) {
  const std::size_t size = names.size();
  nb::tuple result = nb::steal<nb::tuple>(PyTuple_New(static_cast<Py_ssize_t>(size)));
  for (std::size_t i = 0; i < size; ++i)
    NB_TUPLE_SET_ITEM(result.ptr(), i, nb::object(value(item(names, i))).release().ptr());
  return result;
}

}  // namespace

void OperatorCall::describe() {
  const nb::object found = described_();
  const nb::ft_lock_guard lock(mutex_);
  if (is_described_) return;
  family_ = to_text(found[0]);
  num_inputs_ = nb::cast<std::size_t>(found[1]);
  scalars_ = nb::cast<nb::tuple>(found[2]);
  flags_ = nb::cast<nb::tuple>(found[3]);
  outputs_ = nb::cast<nb::tuple>(found[4]);
  is_described_ = true;
}

bool OperatorCall::is_device_next(nb::handle keys) {
  PyObject* const self = keys.ptr();
  static PyObject* const name = PyUnicode_InternFromString("raw_repr");
  const auto number =
      nb::cast<std::uint64_t>(checked(PyObject_VectorcallMethod(name, &self, 1, nullptr)));
  {
    const nb::ft_lock_guard lock(mutex_);
    if (std::ranges::find(plain_keys_, number) != plain_keys_.end()) [[likely]]
      return true;
  }
  if (!nb::cast<bool>(is_device_next_(number))) return false;
  const nb::ft_lock_guard lock(mutex_);
  if (plain_keys_.size() < kMostKeys) plain_keys_.push_back(number);
  return true;
}

bool OperatorCall::may_ask_gradient(nb::handle inputs, nb::handle options) const {
  Torch& torch = Torch::get();
  if (torch.is_forward_differentiated()) return true;
  if (!torch.grad_enabled()) return false;
  const auto asks = [&](nb::handle tensor) {
    if (is_list(tensor)) return any_of(tensor, [&](PyObject* t) { return torch.requires_grad(t); });
    return !tensor.is_none() && torch.requires_grad(tensor.ptr());
  };
  for (std::size_t i = 0; i < num_inputs_; ++i)
    if (asks(item(inputs, i))) return true;
  for (std::size_t i = 0; i < outputs_.size(); ++i)
    if (asks(option(options, item(outputs_, i)))) return true;
  return false;
}

nb::object OperatorCall::kernel_of(PyObject* key) const {
  const nb::object kernel = call_with(known_, key);
  if (kernel.is_none()) return kernel;
  static PyObject* const name = PyUnicode_InternFromString("_native");
  nb::object native = checked(PyObject_GetAttr(kernel.ptr(), name));
  return nb::cast<Kernel*>(native)->family() == family_ ? native : nb::none();
}

nb::object OperatorCall::call(nb::args arguments, nb::kwargs options) {
  if (!is_described_) describe();
  const std::size_t first = is_below_autograd() ? 0 : 1;
  const auto otherwise = [&] { return otherwise_(*arguments, **options); };
  if (arguments.size() != first + 1 + num_inputs_) return otherwise();
  const nb::object kernel = kernel_of(item(arguments, first));
  if (kernel.is_none()) return otherwise();
  const auto inputs =
      nb::steal<nb::tuple>(PyTuple_GetSlice(arguments.ptr(), static_cast<Py_ssize_t>(first + 1),
                                            static_cast<Py_ssize_t>(arguments.size())));
  if (!is_below_autograd() &&
      (may_ask_gradient(inputs, options) || !is_device_next(nb::handle(item(arguments, 0)))))
    return otherwise();
  return run(*nb::cast<Kernel*>(kernel), inputs, options);
}

// Returns whether the arguments fit the operator's schema: no subclass of a type, no dimension with
// a name, no argument that the schema lacks. (The kernel checks the rest.)
bool OperatorCall::takes(nb::handle inputs, nb::handle options) const {
  const Torch& torch = Torch::get();
  const auto is_plain = [&](PyObject* value) {
    return torch.is_plain(value) && !torch.has_names(value);
  };
  const auto is_tensor = [&](PyObject* value) {
    if (is_list(value)) return !any_of(value, [&](PyObject* t) { return !is_plain(t); });
    return value == Py_None || is_plain(value);
  };
  for (std::size_t i = 0; i < num_inputs_; ++i)
    if (!is_tensor(item(inputs, i))) return false;
  if (!options.is_valid()) return true;
  Py_ssize_t num_found = 0;
  const auto takes_all = [&](const nb::tuple& names, auto takes_value) {
    for (std::size_t i = 0; i < names.size(); ++i)
      if (PyObject* const value = PyDict_GetItemWithError(options.ptr(), item(names, i))) {
        if (!takes_value(value)) return false;
        ++num_found;
      }
    return true;
  };
  const auto is_scalar = [](PyObject* value) {
    return value == Py_None || PyFloat_CheckExact(value) || PyLong_CheckExact(value) ||
           PyUnicode_CheckExact(value) || is_list(value);
  };
  const auto is_flag = [](PyObject* value) { return PyBool_Check(value) != 0; };
  const bool is_taken =
      takes_all(scalars_, is_scalar) &&
      (outputs_.size() != 0 ? takes_all(outputs_, is_tensor) : takes_all(flags_, is_flag));
  if (is_taken && num_found == PyDict_Size(options.ptr())) return true;
  if (PyErr_Occurred() != nullptr) throw nb::python_error();  // a str's comparison raised it
  return false;
}

nb::object OperatorCall::call_directly(nb::handle arguments, nb::handle options) {
  if (!is_described_) describe();
  const Py_ssize_t size = PyTuple_Size(arguments.ptr());
  if (static_cast<std::size_t>(size) != 1 + num_inputs_) return {};
  PyObject* const key = item(arguments, 0);
  if (!PyUnicode_CheckExact(key)) return {};
  const nb::object kernel = kernel_of(key);
  if (kernel.is_none()) return {};
  const auto inputs = nb::steal<nb::tuple>(PyTuple_GetSlice(arguments.ptr(), 1, size));
  if (!takes(inputs, options) || may_ask_gradient(inputs, options)) return {};
  return run(*nb::cast<Kernel*>(kernel), inputs, options);
}

nb::object OperatorCall::run(Kernel& kernel, nb::tuple inputs, nb::handle options) const {
  const auto given = [&](PyObject* name) { return nb::borrow(option(options, name)); };
  const bool is_in_place = outputs_.size() != 0;
  nb::object out = nb::none();
  if (is_in_place) {
    nb::list written;
    for (std::size_t i = 0; i < outputs_.size(); ++i)
      if (nb::handle tensor = option(options, item(outputs_, i)); !tensor.is_none())
        written.append(tensor);
    out = written;
  }
  nb::tuple requested = values_of(flags_, [&](PyObject* name) {
    const nb::handle flag = option(options, name);
    return nb::bool_(is_in_place ? !flag.is_none() : flag.ptr() == Py_True);
  });
  nb::object result = kernel.run(std::move(inputs), values_of(scalars_, given), requested, out);
  return is_in_place ? nb::none() : result;
}

}  // namespace kernelmint

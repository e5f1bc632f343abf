#include "operator_call.h"

#include <algorithm>

namespace kernelmint {
namespace {

constexpr std::size_t kMostKeys = 16;  // of dispatch keys that are kept: those of a device are two

PyObject* item(nb::handle tuple, std::size_t i) { return NB_TUPLE_GET_ITEM(tuple.ptr(), i); }

// The value of an option, or None.
nb::handle option(nb::handle options, PyObject* name) {
  PyObject* const value = PyDict_GetItemWithError(options.ptr(), name);
  return value == nullptr ? Py_None : value;
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
  if (std::ranges::find(plain_keys_, number) != plain_keys_.end()) [[likely]]
    return true;
  if (!nb::cast<bool>(is_device_next_(number))) return false;
  if (plain_keys_.size() < kMostKeys) plain_keys_.push_back(number);
  return true;
}

bool OperatorCall::may_ask_gradient(nb::handle inputs, nb::handle options) const {
  Torch& torch = Torch::get();
  if (torch.is_forward_differentiated()) return true;
  if (!torch.grad_enabled()) return false;
  const auto asks = [&](nb::handle tensor) {
    return !tensor.is_none() && torch.requires_grad(tensor.ptr());
  };
  for (std::size_t i = 0; i < num_inputs_; ++i)
    if (asks(item(inputs, i))) return true;
  for (std::size_t i = 0; i < outputs_.size(); ++i)
    if (asks(option(options, item(outputs_, i)))) return true;
  return false;
}

nb::object OperatorCall::call(nb::args arguments, nb::kwargs options) {
  if (!is_described_) describe();
  const std::size_t first = is_below_autograd() ? 0 : 1;
  const auto otherwise = [&] { return otherwise_(*arguments, **options); };
  if (arguments.size() != first + 1 + num_inputs_) return otherwise();
  const nb::object kernel = call_with(known_, item(arguments, first));
  if (kernel.is_none()) return otherwise();
  static PyObject* const name = PyUnicode_InternFromString("_native");
  const auto native = nb::cast<Kernel*>(checked(PyObject_GetAttr(kernel.ptr(), name)));
  if (native->family() != family_) return otherwise();
  const auto inputs =
      nb::steal<nb::tuple>(PyTuple_GetSlice(arguments.ptr(), static_cast<Py_ssize_t>(first + 1),
                                            static_cast<Py_ssize_t>(arguments.size())));
  if (!is_below_autograd() &&
      (may_ask_gradient(inputs, options) || !is_device_next(nb::handle(item(arguments, 0)))))
    return otherwise();
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
  nb::object result = native->run(inputs, values_of(scalars_, given), requested, out);
  return is_in_place ? nb::none() : result;
}

}  // namespace kernelmint

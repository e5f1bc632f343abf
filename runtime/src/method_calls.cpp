#include "method_calls.h"

#include <dlfcn.h>

#include <algorithm>
#include <exception>
#include <unordered_map>
#include <utility>

namespace kernelmint {

Signature::Signature(nb::handle method) {
  const nb::object code = method.attr("__code__");
  num_positional_ = nb::cast<Py_ssize_t>(code.attr("co_argcount")) - 1;
  const auto size = num_positional_ + nb::cast<Py_ssize_t>(code.attr("co_kwonlyargcount"));
  const nb::object defaults = method.attr("__defaults__");
  const nb::object keywords = method.attr("__kwdefaults__");
  const Py_ssize_t first = num_positional_ - (defaults.is_none() ? 0 : nb::len(defaults));
  for (Py_ssize_t i = 0; i < size; ++i) {
    const nb::object name = code.attr("co_varnames")[i + 1];
    nb::object value;
    if (i >= num_positional_ && !keywords.is_none())
      value = nb::borrow(PyDict_GetItemWithError(keywords.ptr(), name.ptr()));
    if (i < num_positional_ && i >= first) value = defaults[i - first];
    names_.push_back(name);
    defaults_.push_back(value);
  }
}

const Signature& Signature::of(nb::handle method) {
  static auto& kept = *new std::unordered_map<PyObject*, Signature>;  // for the whole process
  static auto& mutex = *new nb::ft_mutex;
  nb::object code = method.attr("__code__");
  {
    const nb::ft_lock_guard lock(mutex);
    if (const auto found = kept.find(code.ptr()); found != kept.end()) return found->second;
  }
  Signature made(method);
  const nb::ft_lock_guard lock(mutex);
  const auto [place, is_new] = kept.emplace(code.ptr(), std::move(made));
  if (is_new) code.release();
  return place->second;
}

bool Signature::bind(PyObject* const* given, Py_ssize_t count, PyObject* names,
                     PyObject** values) const {
  if (count > num_positional_) return false;
  std::copy_n(given, count, values);
  for (int i = static_cast<int>(count); i < size(); ++i) values[i] = defaults_[i].ptr();
  const Py_ssize_t num_names = names == nullptr ? 0 : PyTuple_Size(names);
  for (Py_ssize_t n = 0; n < num_names; ++n) {
    PyObject* const name =
        NB_TUPLE_GET_ITEM(names, n);  // interned, like the names of a code object
    int i = static_cast<int>(count);
    while (i < size() && names_[i].ptr() != name) ++i;
    if (i == size()) return false;
    values[i] = given[count + n];
  }
  return std::find(values, values + size(), nullptr) == values + size();
}

Vectorcall set_vectorcall(nb::handle function, Vectorcall call) {
#if PY_VERSION_HEX < 0x030C0000
  return std::exchange(reinterpret_cast<PyFunctionObject*>(function.ptr())->vectorcall, call);
#else  // no function of the stable ABI
  static const auto get =
      reinterpret_cast<Vectorcall (*)(PyObject*)>(dlsym(RTLD_DEFAULT, "PyVectorcall_Function"));
  static const auto set = reinterpret_cast<void (*)(PyObject*, Vectorcall)>(
      dlsym(RTLD_DEFAULT, "PyFunction_SetVectorcall"));
  if (get == nullptr || set == nullptr) return nullptr;
  const Vectorcall before = get(function.ptr());
  set(function.ptr(), call);
  return before;
#endif
}

PyObject* raise_current() {
  static thread_local std::exception_ptr current;
  static const auto& raise = *new nb::object(
      nb::cpp_function([] { std::rethrow_exception(std::exchange(current, nullptr)); }));
  current = std::current_exception();
  return PyObject_CallNoArgs(raise.ptr());
}

}  // namespace kernelmint

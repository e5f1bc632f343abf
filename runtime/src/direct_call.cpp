#include "direct_call.h"

#include <algorithm>
#include <exception>

#include "errors.h"
#include "method_calls.h"

namespace kernelmint {
namespace {

constexpr std::size_t kMostKeys = 16;  // kept states of threads' dispatch keys; two are usual

}  // namespace

bool DirectCall::is_plain() {
  const TorchDispatch& dispatch = TorchDispatch::get();
  const auto keys = dispatch.keys();
  if (!keys.has_value() || dispatch.is_observed()) return false;
  {
    const nb::ft_lock_guard lock(mutex_);
    if (std::ranges::find(plain_keys_, *keys) != plain_keys_.end()) [[likely]]
      return true;
  }
  if (!nb::cast<bool>(is_plain_())) return false;
  const nb::ft_lock_guard lock(mutex_);
  if (plain_keys_.size() < kMostKeys) plain_keys_.push_back(*keys);
  return true;
}

PyObject* DirectCall::operator()(PyObject* arguments, PyObject* options) try {
  try {
    if (is_plain()) {
      nb::object result = native_->call_directly(arguments, options);
      if (result.is_valid()) return result.release().ptr();
    }
  } catch (const RejectedValue&) {
    throw;
  } catch (const InvalidArgument&) {  // PyTorch's function raises its own error, or the same
  } catch (const TargetUnavailable&) {
  }
  return PyObject_Call(through_.ptr(), arguments, options);
} catch (const std::exception&) {
  return raise_current();
}

// Slots, since Python would look a method __call__ up and pack its arguments once more.
PyType_Slot DirectCall::slots[] = {
    {Py_tp_call, reinterpret_cast<void*>(+[](PyObject* self, PyObject* args, PyObject* options) {
       return (*nb::inst_ptr<DirectCall>(self))(args, options);
     })},
    {Py_tp_hash, reinterpret_cast<void*>(
                     +[](PyObject* self) { return nb::inst_ptr<DirectCall>(self)->hash(); })},
    {0, nullptr},
};

}  // namespace kernelmint

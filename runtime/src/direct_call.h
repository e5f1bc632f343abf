// The functions of a family's operator that torch.ops calls in place of PyTorch's dispatcher.
#pragma once

#include <nanobind/nanobind.h>

#include <vector>

#include "operator_call.h"
#include "torch_dispatch.h"

namespace kernelmint {

// Runs calls that the dispatcher would only pass on: the tensors are plain, no mode or transform
// changes the thread's dispatch keys, and nothing observes the call. PyTorch's own function runs
// all other calls, and the calls that the kernel refuses.
class DirectCall {
 public:
  // `call`: the operator's OperatorCall. `is_plain`: a function, called once for each state of a
  // thread's dispatch keys, that returns whether no key has to see the call. `through`: PyTorch's
  // function.
  DirectCall(nb::object call, nb::object is_plain, nb::object through)
      : call_(std::move(call)),
        native_(nb::cast<OperatorCall*>(call_)),
        is_plain_(std::move(is_plain)),
        through_(std::move(through)) {}

  // Calls the operator as Python calls an object: `arguments` is a tuple, `options` a dict or null.
  // Returns null if a Python error is set.
  PyObject* operator()(PyObject* arguments, PyObject* options);

  nb::object through() const { return through_; }

  // The hash of PyTorch's function, by which the objects that hold the function are hashed.
  Py_hash_t hash() const { return PyObject_Hash(through_.ptr()); }

  static PyType_Slot slots[];

 private:
  bool is_plain();

  nb::object call_;
  OperatorCall* native_;
  nb::object is_plain_, through_;
  nb::ft_mutex mutex_;
  std::vector<TorchDispatch::Keys> plain_keys_;  // guarded by the mutex
};

}  // namespace kernelmint

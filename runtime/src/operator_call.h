// The functions of a family's operator that PyTorch's dispatcher calls.
#pragma once

#include <nanobind/nanobind.h>

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "kernel.h"

namespace kernelmint {

// Runs calls that only the kernel has to see: the kernel is known, no gradient is asked for, and no
// dispatch key stands between autograd and the device. A Python function runs other calls.
class OperatorCall {
 public:
  // The functions:
  // - described(), called at the first call, returns (the family's name, the number of inputs, the
  //   scalars' names, the name of each optional output's flag, the outputs' names). The names of
  //   outputs are empty if the kernel allocates the outputs;
  // - known(key) returns the runtime.handle.Kernel of a key that was looked up before, or None;
  // - is_device_next(keys) returns whether, in this set of dispatch keys (a number), a device's
  //   kernel follows autograd's. None: the operator is called below autograd, without keys;
  // - otherwise(*arguments, **options) runs the call.
  OperatorCall(nb::object described, nb::object known, nb::object is_device_next,
               nb::object otherwise)
      : described_(std::move(described)),
        known_(std::move(known)),
        is_device_next_(std::move(is_device_next)),
        otherwise_(std::move(otherwise)) {}

  // `arguments`: the dispatch keys, unless called below autograd, the kernel's key, and inputs.
  nb::object call(nb::args arguments, nb::kwargs options);

  // Makes a call that has not passed through the dispatcher. `arguments` holds the kernel's key and
  // inputs; `options` is a dict or null. Returns an invalid object if the dispatcher has to see the
  // call.
  nb::object call_directly(nb::handle arguments, nb::handle options);

 private:
  void describe();
  nb::object kernel_of(PyObject* key) const;  // a Kernel; None: unknown, or another family's
  bool takes(nb::handle inputs, nb::handle options) const;
  nb::object run(Kernel& kernel, nb::tuple inputs, nb::handle options) const;
  bool is_below_autograd() const { return is_device_next_.is_none(); }
  bool is_device_next(nb::handle keys);
  bool may_ask_gradient(nb::handle inputs, nb::handle options) const;

  nb::object described_, known_, is_device_next_, otherwise_;
  nb::ft_mutex mutex_;  // guards the description while it is made, and plain_keys_
  std::atomic<bool> is_described_ = false;
  std::string family_;
  std::size_t num_inputs_ = 0;
  nb::tuple scalars_, flags_, outputs_;
  std::vector<std::uint64_t> plain_keys_;  // keys after which a device's kernel is next
};

}  // namespace kernelmint

// The functions that PyTorch's dispatcher calls of a family's operator.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <string>
#include <vector>

#include "kernel.h"

namespace kernelmint {

// Runs a call that only the kernel has to see: a call of a known kernel, without a gradient, and
// with nothing of PyTorch's between autograd and the device. It leaves other calls to a function.
class OperatorCall {
 public:
  // The functions are called
  // - described(): at the first call: (the family's name, the number of inputs, the names of
  //   scalars, the names that ask for each optional output, the outputs' names, of which there are
  //   none if the kernel allocates them);
  // - known(key): the runtime.handle.Kernel of a key that was found before, or None;
  // - is_device_next(keys): whether of these dispatch keys, a number, a device's kernel follows
  //   autograd's. None: the operator is called below autograd, without keys;
  // - otherwise(*arguments, **options): with those of the call.
  OperatorCall(nb::object described, nb::object known, nb::object is_device_next,
               nb::object otherwise)
      : described_(std::move(described)),
        known_(std::move(known)),
        is_device_next_(std::move(is_device_next)),
        otherwise_(std::move(otherwise)) {}

  // `arguments`: the dispatch keys, unless it is below autograd, the kernel's key, and inputs.
  nb::object call(nb::args arguments, nb::kwargs options);

  // Makes a call that has not passed through the dispatcher: `arguments` are the kernel's key and
  // inputs, `options` a dict, or null without any. Returns an invalid object if the dispatcher has
  // to see the call.
  nb::object call_directly(nb::handle arguments, nb::handle options);

 private:
  void describe();
  nb::object kernel_of(PyObject* key) const;  // a Kernel; None: not known, or another family's
  bool takes(nb::handle inputs, nb::handle options) const;
  nb::object run(Kernel& kernel, nb::tuple inputs, nb::handle options) const;
  bool is_below_autograd() const { return is_device_next_.is_none(); }
  bool is_device_next(nb::handle keys);
  bool may_ask_gradient(nb::handle inputs, nb::handle options) const;

  nb::object described_, known_, is_device_next_, otherwise_;
  bool is_described_ = false;
  std::string family_;
  std::size_t num_inputs_ = 0;
  nb::tuple scalars_, flags_, outputs_;
  std::vector<std::uint64_t> plain_keys_;  // keys after which a device's kernel is next
};

}  // namespace kernelmint

// One built kernel, bound to its argument checks.
#pragma once

#include <nanobind/nanobind.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>

#include "method_calls.h"
#include "registry.h"
#include "torch_bridge.h"

namespace kernelmint {

// An order of a caller's dimensions that differs from the kernel's: the caller's dimension i is the
// kernel's dims[i]; the kernel's other dimensions have extent 1. A rank of 0 is the kernel's order.
struct DimensionOrder {
  int rank = 0, kernel_rank = 0;
  int dims[kMaxRank];

  // Converts the caller's dimensions to the kernel's. Returns whether the tensor has the caller's
  // rank.
  bool apply(TensorInfo& tensor) const;
};

class Kernel {
 public:
  // `parameters` (name -> value), derived values included, is shown in messages about expressions.
  // `architectures`: the target's compiled architectures, as runtime.devices takes them.
  // `dispatched`: a function that calls the registered operator, which PyTorch's modes can see; it
  // is called with the key and call()'s arguments if a mode is active. None without an operator.
  // `likes`: by the index of an output, the index of the input whose order of dimensions in memory
  // the output has. Throws TargetUnavailable if a CPU kernel was compiled for no instruction set
  // that this processor has.
  Kernel(const FamilyEntry& family, const TargetEntry& target, const KernelEntry& entry,
         nb::tuple architectures, nb::dict parameters, nb::object dispatched, nb::dict likes);

  // Checks the arguments against the family's tables, allocates outputs that were not passed, and
  // runs the kernel on the caller's device and stream. `inputs` and `scalars` are in spec order; an
  // optional input may be None, and a scalar of None takes its default. `requested` has a bool for
  // each optional output; `out` is None, the output's tensor, or a tuple of the outputs' tensors.
  // Returns the tensor if the family has one output, a tuple if it has more, and None if it has no
  // output; without `out`, an output that is not requested is an empty tensor.
  nb::object run(nb::tuple inputs, nb::tuple scalars, nb::tuple requested, nb::object out);

  // Runs the kernel as call() does, but returns only the requested outputs, and calls the
  // registered operator while something records or transforms PyTorch's operations.
  nb::object call(nb::tuple inputs, nb::tuple scalars, nb::tuple requested, nb::object out);

  // Runs plain calls of the Python object that holds this kernel as `_native` without a frame of
  // Python's. The object's type, which no other kernel has, must have a method `__call__` with
  // call()'s arguments, in this order and by name; the method runs all other calls. Throws
  // nb::type_error if the method takes something else.
  void serve(nb::object kernel);

  // Calls the kernel as call() does, but launches `count` times, for tools that measure launches.
  nb::object launch_times(nb::tuple inputs, nb::tuple scalars, nb::tuple requested, nb::object out,
                          int count);

  // Runs a traced kernel as run() does, and requests its trace. Returns run()'s result, and the
  // trace's records, [*grid, floats of a record] f32; floats that the kernel does not write are
  // NaN.
  nb::tuple trace(nb::tuple inputs, nb::tuple scalars, nb::tuple requested, nb::object out);

  const char* key() const { return entry_.key; }
  const char* family() const { return family_.name; }

 private:
  friend class Selector;  // the Selector reads a call's tensors
  struct Call;

  // A call's steps, in order.
  void convert_scalars(Call& call, PyObject* const* scalars) const;
  void choose_outputs(Call& call, PyObject* const* requested, PyObject* out) const;
  void bind_inputs(Call& call, PyObject* const* inputs);
  void bind_lists(Call& call, PyObject* const* inputs);
  void set_default_scalars(Call& call) const;
  void find_facts(Call& call) const;
  bool bind_outputs(Call& call);  // false if nothing is written
  void launch(Call& call);
  void bind_workspace(Call& call, void* args);
  void fill_outputs(Call& call) const;
  void allocate_trace(Call& call);
  void bind_trace(const Call& call, void* args) const;

  // A call's values, borrowed: inputs, scalars, requested and out, one after the other.
  using Values = std::array<PyObject*, kMaxTensors + kMaxScalars + 1>;

  Values values_of(nb::handle inputs, nb::handle scalars, nb::handle requested,
                   nb::handle out) const;
  nb::object perform(Call& call, const Values& values);

  // The function that Python calls for the `__call__` of a served object.
  static PyObject* take_call(PyObject* method, PyObject* const* arguments, std::size_t flags,
                             PyObject* names);

  void convert_list(Call& call, int index, nb::handle values) const;
  ScalarValue converted(const Call& call, const ScalarArgument& argument, nb::handle value) const;
  void check_dtype(const TensorArgument& argument, const TensorInfo& tensor, Dtype dtype) const;
  void check_device(Call& call, const TensorArgument& argument, const TensorInfo& tensor);
  void bind_symbols(Call& call, int index, const TensorArgument& argument,
                    const TensorInfo& tensor) const;
  void bind_length(Call& call, int index) const;
  void bind_element(Call& call, int index, const TensorArgument& argument);
  void bind_flat(Call& call, int index, const TensorArgument& argument,
                 const TensorInfo& tensor) const;
  void check_memory(const TensorArgument& argument, const TensorInfo& tensor, int index) const;
  nb::object held_number(const Call& call, const char* name, nb::handle value,
                         const char* expected) const;
  // The reason why a tensor that asks for a gradient cannot have one; empty if it does not ask.
  std::string no_gradient(const Call& call, const char* name, const TensorInfo& tensor) const;
  void check_gradient(const Call& call, const TensorArgument& argument,
                      const TensorInfo& tensor) const;
  void check_gradients_of_list(const Call& call, int index) const;
  void check_writable(const Call& call, const TensorArgument& argument, TensorInfo& tensor) const;
  void check_negative(Call& call, const TensorArgument& argument, const TensorInfo& tensor) const;
  void check_expressions(const Call& call, const TensorArgument& argument,
                         const TensorInfo& tensor) const;
  void check_requirements(const Call& call, bool of_scalars) const;
  void check_requirements(const Call& call, const Requirement* requirements, int count,
                          bool of_scalars) const;
  void check_output(Call& call, int index, const std::int64_t* shape, PyObject* object);
  void check_apart(const Call& call, const TensorArgument& argument, int index) const;
  void check_self_apart(const TensorArgument& argument, const TensorInfo& tensor, int index) const;
  void check_apart_from_lists(const Call& call, const TensorArgument& argument, int index) const;
  void check_lists_apart(const Call& call) const;
  void output_shape(const Call& call, const TensorArgument& argument, std::int64_t* shape) const;
  void allocate(Call& call, int index, const std::int64_t* shape);

  // For messages.
  std::string binder_of(const Call& call, int symbol) const;
  std::string shape_text(const TensorArgument& argument) const;
  std::string here(const char* expression, const Call& call, bool scalars_known = false) const;

  std::int64_t evaluate(IntExpression expression, const char* expression_text, const Call& call,
                        bool scalars_known = false) const;
  Scope scope(const Call& call) const;

  const FamilyEntry& family_;
  const TargetEntry& target_;
  const KernelEntry& entry_;
  nb::tuple architectures_;
  nb::dict parameters_;
  LaunchFunction launch_;
  bool is_cuda_;
  bool asks_device_;
  bool is_traced_;
  nb::object dispatched_;
  PyObject* method_ = nullptr;  // the method whose calls the kernel serves; only compared
  const Signature* signature_ = nullptr;
  bool has_input_expressions_ = false;  // among extents of single tensors
  bool requires_scalars_ = false;
  bool has_optional_inputs_ = false;
  int num_inputs_ = 0, num_mutated_ = 0, num_outputs_ = 0, num_lists_ = 0;
  std::uint8_t inputs_[kMaxTensors], outputs_[kMaxTensors];  // indices
  std::uint8_t mutated_[kMaxTensors];                        // indices, without lists
  std::uint8_t slots_[kMaxScalars];                          // places in Scope::scalars
  int num_requested_ = 0;                                    // optional outputs
  int num_filled_ = 0;  // outputs and workspaces that have a value before the kernel runs
  Dtype dtypes_[kMaxTensors];
  std::int8_t likes_[kMaxTensors];        // by output: the input whose order in memory it has
  int alignments_[kMaxTensors];           // bytes
  std::string given_names_[kMaxTensors];  // "out (o)": the caller's output
  TensorArgument given_outputs_[kMaxTensors];
  std::atomic<std::uint64_t> ready_devices_ = 0;  // CUDA devices that can run the target
};

}  // namespace kernelmint

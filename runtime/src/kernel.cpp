#include "kernel.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstddef>
#include <limits>
#include <string_view>

#include "errors.h"
#include "gil.h"
#include "launch_memory.h"
#include "overlap.h"
#include "processor.h"

namespace kernelmint {
namespace {

constexpr std::int64_t kNoStrides[kMaxRank] = {};
constexpr bool is_floating(Dtype dtype) { return dtype == Dtype::f32 || dtype == Dtype::f64; }

constexpr std::int64_t kMaxExtent = std::numeric_limits<std::int32_t>::max();
constexpr std::int64_t kMaxElements = std::int64_t{1} << 50;  // of a workspace: sums fit 64 bits

std::string shape_of(const std::int64_t* shape, int rank) {
  std::string result = "[";
  for (int i = 0; i < rank; ++i) result += text(i ? ", " : "", shape[i]);
  return result + "]";
}

std::string shape_of(PyObject* tensor) {
  return to_text(nb::steal(PySequence_List(nb::object(nb::handle(tensor).attr("shape")).ptr())));
}

std::string attribute_text(PyObject* tensor, const char* name) {
  return to_text(nb::handle(tensor).attr(name));
}

// "x_offsets[3]: got 5, expected 9 to 12: ...": a value that a kernel did not accept.
std::string rejected_text(const LaunchResult& result) {
  const std::string element = result.index < 0 ? "" : text("[", result.index, "]");
  const std::string range =
      result.least == result.most ? text(result.least) : text(result.least, " to ", result.most);
  return text(result.argument, element, ": got ", result.value, ", expected ", range, ": ",
              result.error);
}

std::string value_text(const ScalarArgument& argument, const ScalarValue& value) {
  if (argument.values != nullptr) return argument.values[value.integer];
  return is_floating(argument.dtype) ? text(value.floating) : text(value.integer);
}

// What `dtype` is called where it does not hold the value; else null.
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

// What one call has found so far; arrays are indexed as the family's tensors and scalars are.
struct Kernel::Call {
  Torch& torch = Torch::get();
  TensorInfo tensors[kMaxTensors];
  BoundTensor bound[kMaxTensors];
  std::int64_t symbols[kMaxSymbols];
  std::int16_t bound_by[kMaxSymbols];  // the tensor that a symbol came from; -1: none yet
  int first_input = -1;
  ScalarValue scalars[kMaxScalars];
  bool is_default[kMaxScalars];
  DeviceFacts facts;              // known where an expression asks for them, and at the launch
  bool present[kMaxTensors];      // of outputs, whether they are asked for; of inputs, passed
  int num_wanted = 0;             // outputs to return
  nb::object owned[kMaxTensors];  // outputs
  nb::object workspace, zeroed_workspace;
  bool wants_trace = false;
  nb::object trace;
  TensorInfo records;

  dlpack::Device device() const { return tensors[first_input].device; }
};

Kernel::Kernel(const FamilyEntry& family, const TargetEntry& target, const KernelEntry& entry,
               nb::tuple architectures, nb::dict parameters, nb::object dispatched)
    : family_(family),
      target_(target),
      entry_(entry),
      architectures_(std::move(architectures)),
      parameters_(std::move(parameters)),
      is_cuda_(target.capability != 0),
      asks_device_(family.asks_device || target.asks_device),
      is_traced_(family.trace != nullptr && entry.parameters[family.trace->parameter] != 0),
      dispatched_(std::move(dispatched)) {
  launch_ = is_cuda_ ? entry.cuda : select(entry);
  for (int i = 0; i < family.num_tensors; ++i) {
    const TensorArgument& argument = family.tensors[i];
    dtypes_[i] = argument.dtype_parameter < 0
                     ? argument.dtype
                     : static_cast<Dtype>(entry.parameters[argument.dtype_parameter]);
    const IntExpression alignment =
        argument.alignment != nullptr ? argument.alignment : target.alignment;
    const Scope constants{.parameters = entry.parameters};
    alignments_[i] =
        std::max(alignment == nullptr ? 1 : static_cast<int>(alignment(constants).value),
                 size_in_bytes(dtypes_[i]));
    given_names_[i] = text("out (", argument.name, ")");
    given_outputs_[i] = argument;
    given_outputs_[i].name = given_names_[i].c_str();
    if (argument.role == Role::output) {
      outputs_[num_outputs_++] = i;
      num_requested_ += argument.optional;
      continue;
    }
    inputs_[num_inputs_++] = i;
    if (argument.mutated) mutated_[num_mutated_++] = i;
    has_optional_inputs_ |= argument.optional;
    for (int d = 0; d < argument.rank; ++d) has_input_expressions_ |= argument.dims[d].symbol < 0;
  }
  for (int i = 0; i < family.num_requirements; ++i)
    requires_scalars_ |= family.requirements[i].needs_scalars;
  for (int i = 0; i < target.num_requirements; ++i)
    requires_scalars_ |= target.requirements[i].needs_scalars;
}

std::string Kernel::shape_text(const TensorArgument& argument) const {
  std::string result = "[";
  for (int i = 0; i < argument.rank; ++i) result += text(i ? ", " : "", argument.dims[i].text);
  return result + "]";
}

// "; here H = 6, Hk = 4": the symbols, optional tensors, parameters, derived values, facts about
// the device and, once they are known, scalars that an expression names, and their values; empty
// where it names none.
std::string Kernel::here(const char* expression, const Call& call, bool scalars_known) const {
  std::string result;
  const auto add = [&](std::string_view name, const std::string& value) {
    result += text(result.empty() ? "; here " : ", ", name, " = ", value);
  };
  std::string seen = " ";
  for (const char* at = expression; *at != '\0';) {
    if (!std::isalpha(static_cast<unsigned char>(*at)) && *at != '_') {
      ++at;
      continue;
    }
    const char* begin = at;
    while (std::isalnum(static_cast<unsigned char>(*at)) || *at == '_') ++at;
    const std::string word(begin, at);
    if (seen.find(" " + word + " ") != std::string::npos) continue;
    seen += word + " ";
    for (int i = 0; i < family_.num_symbols; ++i)
      if (word == family_.symbols[i]) add(word, std::to_string(call.symbols[i]));
    for (int i = 0; i < family_.num_tensors; ++i)
      if (family_.tensors[i].optional && word == family_.tensors[i].name)
        add(word, call.present[i] ? "True" : "False");
    for (int i = 0; scalars_known && i < family_.num_scalars; ++i)
      if (word == family_.scalars[i].name)
        add(word, value_text(family_.scalars[i], call.scalars[i]));
    if (asks_device_ && word == "sm_count") add(word, text(call.facts.sm_count));
    if (asks_device_ && word == "max_shared_memory") add(word, text(call.facts.max_shared_memory));
    if (parameters_.contains(word.c_str())) add(word, to_text(parameters_[word.c_str()]));
  }
  return result;
}

Scope Kernel::scope(const Call& call) const {
  return {call.symbols, entry_.parameters, call.scalars, &call.facts, call.present};
}

std::int64_t Kernel::evaluate(IntExpression expression, const char* expression_text,
                              const Call& call, bool scalars_known) const {
  const Evaluated<std::int64_t> result = expression(scope(call));
  if (result.error == nullptr) [[likely]]
    return result.value;
  throw InvalidArgument(text(entry_.key, ": ", expression_text, ": ", result.error,
                             here(expression_text, call, scalars_known)));
}

void Kernel::find_facts(Call& call) const {
  call.facts =
      is_cuda_ ? call.torch.cuda_facts(call.device().id) : DeviceFacts{call.torch.num_threads(), 0};
}

void Kernel::check_dtype(const TensorArgument& argument, const TensorInfo& tensor,
                         Dtype dtype) const {
  if (tensor.dtype == static_cast<int>(dtype)) [[likely]]
    return;
  throw InvalidArgument(text(argument.name, ": got dtype ", attribute_text(tensor.object, "dtype"),
                             ", expected ", torch_name(dtype), " (", entry_.key, ")"));
}

void Kernel::check_device(Call& call, const TensorArgument& argument, const TensorInfo& tensor) {
  const dlpack::Device device = tensor.device;
  if (argument.on_host) {
    if (device.type == dlpack::kCpu) return;
    throw InvalidArgument(text(
        argument.name, ": got a tensor on ", attribute_text(tensor.object, "device"),
        ", expected one on the CPU, where the launch reads it; pass ", argument.name, ".cpu()"));
  }
  if (call.first_input >= 0) {
    const dlpack::Device first = call.tensors[call.first_input].device;
    if (device.type == first.type && device.id == first.id) [[likely]]
      return;
    throw InvalidArgument(text(argument.name, ": got a tensor on ",
                               attribute_text(tensor.object, "device"), ", expected the device of ",
                               family_.tensors[call.first_input].name, ", ",
                               attribute_text(call.tensors[call.first_input].object, "device")));
  }
  if (device.type != (is_cuda_ ? dlpack::kCuda : dlpack::kCpu)) {
    const nb::object devices = nb::module_::import_("runtime.devices");
    if (is_cuda_ && !nb::cast<bool>(devices.attr("has_cuda")()))
      throw TargetUnavailable(text(entry_.key, ": needs a CUDA device; no CUDA device"));
    throw InvalidArgument(text(argument.name, ": got a tensor on ",
                               attribute_text(tensor.object, "device"), ", expected a ",
                               is_cuda_ ? "CUDA" : "CPU", " tensor (", entry_.key, ")"));
  }
  if (!is_cuda_) return;
  if (device.id < 64 && (ready_devices_ >> device.id & 1)) [[likely]]
    return;
  const nb::object reason =
      nb::module_::import_("runtime.devices")
          .attr("why_unavailable")(target_.capability, target_.exact_capability, architectures_,
                                   device.id);
  if (!reason.is_none()) throw TargetUnavailable(text(entry_.key, ": ", to_text(reason)));
  if (device.id < 64) ready_devices_ |= std::uint64_t{1} << device.id;
}

void Kernel::check_gradients(const Call& call, const char* name, const TensorInfo& tensor) const {
  if (call.torch.requires_grad(tensor.object) && call.torch.grad_enabled())
    throw InvalidArgument(
        text(name, ": requires_grad is set and grad mode is on, but ", family_.name,
             " has no backward; call it under torch.no_grad() or pass ", name, ".detach()"));
}

void Kernel::check_autograd(Call& call, const TensorArgument& argument,
                            const TensorInfo& tensor) const {
  check_gradients(call, argument.name, tensor);
  if (call.torch.has_neg_bit(tensor.object))
    throw InvalidArgument(
        text(argument.name,
             ": got a lazily negated view (is_neg() is true), expected its values in "
             "memory; pass ",
             argument.name, ".resolve_neg()"));
}

void Kernel::check_memory(const TensorArgument& argument, const TensorInfo& tensor,
                          int index) const {
  const int size = size_in_bytes(dtypes_[index]);
  int alignment = alignments_[index];
  const std::int64_t* shape = tensor.shape;
  const std::int64_t* strides = tensor.strides;
  const int last = tensor.rank - 1;
  for (int i = 0; i <= last; ++i)
    if (shape[i] == 0) return;  // nothing is read or written
  if (last >= 0 && shape[last] > 1 && strides[last] != 1) {
    if (argument.strides != Strides::any)
      throw InvalidArgument(text(argument.name, ": got stride ", strides[last],
                                 " in the last dimension, expected 1; pass ", argument.name,
                                 ".contiguous()"));
    alignment = size;
  }
  if (argument.strides == Strides::contiguous) {
    std::int64_t expected = 1;
    for (int i = last; i >= 0; expected *= shape[i--])
      if (shape[i] > 1 && strides[i] != expected)
        throw InvalidArgument(text(argument.name, ": got strides ", shape_of(strides, tensor.rank),
                                   ", expected a contiguous ", "tensor; pass ", argument.name,
                                   ".contiguous()"));
  }
  const auto address = reinterpret_cast<std::uintptr_t>(tensor.data);
  if (address % alignment != 0)
    throw InvalidArgument(text(argument.name, ": got data that begins ", address % alignment,
                               " bytes past a multiple of ", alignment, ", expected ", alignment,
                               "-byte alignment (", entry_.key, "); pass ", argument.name,
                               ".clone()"));
  if (alignment <= size) return;
  // A contiguous tensor always passes: rows that are no multiple of the alignment in themselves
  // ask for no more than what their length divides.
  std::int64_t unit = alignment;
  if (last >= 0)
    while (shape[last] * size % unit != 0) unit /= 2;
  for (int i = 0; i < last; ++i)
    if (shape[i] > 1 && strides[i] * size % unit != 0)
      throw InvalidArgument(text(argument.name, ": got a stride of ", strides[i] * size,
                                 " bytes in dimension ", i, ", expected a multiple of ", unit, " (",
                                 entry_.key, "); pass ", argument.name, ".contiguous()"));
}

void Kernel::bind_symbols(Call& call, const TensorArgument& argument, const TensorInfo& tensor) {
  if (tensor.rank != argument.rank)
    throw InvalidArgument(text(argument.name, ": got shape ", shape_of(tensor.object),
                               ", expected ", static_cast<int>(argument.rank), " dimensions, ",
                               shape_text(argument)));
  for (int i = 0; i < tensor.rank; ++i) {
    const std::int64_t extent = tensor.shape[i];
    if (extent > kMaxExtent)
      throw InvalidArgument(text(argument.name, ": got ", extent, " in dimension ", i, " (",
                                 argument.dims[i].text, "), expected at most ", kMaxExtent,
                                 ": kernels count each extent in 32 bits"));
    const int symbol = argument.dims[i].symbol;
    if (symbol < 0) continue;
    if (call.bound_by[symbol] < 0) {
      call.symbols[symbol] = extent;
      call.bound_by[symbol] = static_cast<std::int16_t>(&argument - family_.tensors);
    } else if (call.symbols[symbol] != extent) {
      throw InvalidArgument(text(argument.name, ": got shape ", shape_of(tensor.shape, tensor.rank),
                                 ", expected ", shape_text(argument), " with ",
                                 family_.symbols[symbol], " = ", call.symbols[symbol], " as in ",
                                 family_.tensors[call.bound_by[symbol]].name, "; dimension ", i,
                                 " is ", extent));
    }
  }
}

void Kernel::check_expressions(const Call& call) const {
  for (int n = 0; n < num_inputs_; ++n) {
    const int t = inputs_[n];
    const TensorArgument& argument = family_.tensors[t];
    if (!call.present[t]) continue;
    for (int i = 0; i < argument.rank; ++i) {
      const Dim& dim = argument.dims[i];
      if (dim.symbol >= 0) continue;
      const std::int64_t needed = evaluate(dim.value, dim.text, call);
      if (call.tensors[t].shape[i] != needed)
        throw InvalidArgument(text(argument.name, ": got shape ",
                                   shape_of(call.tensors[t].shape, argument.rank), ", expected ",
                                   shape_text(argument), ": dimension ", i, " must be ", needed,
                                   here(dim.text, call)));
    }
  }
}

void Kernel::check_requirements(const Call& call, const Requirement* requirements, int count,
                                bool of_scalars) const {
  for (int i = 0; i < count; ++i) {
    const Requirement& requirement = requirements[i];
    if (requirement.needs_scalars != of_scalars) continue;
    if (evaluate(requirement.holds, requirement.text, call, of_scalars) != 0) [[likely]]
      continue;
    throw InvalidArgument(text(entry_.key, ": requires ", requirement.text, ", because ",
                               requirement.because, here(requirement.text, call, of_scalars)));
  }
}

void Kernel::check_requirements(const Call& call, bool of_scalars) const {
  check_requirements(call, family_.requirements, family_.num_requirements, of_scalars);
  check_requirements(call, target_.requirements, target_.num_requirements, of_scalars);
}

// Converting may run any Python code, which may resize a tensor: before their memory is looked at.
void Kernel::convert_scalars(Call& call, nb::handle scalars) const {
  for (int i = 0; i < family_.num_scalars; ++i) {
    const ScalarArgument& argument = family_.scalars[i];
    const nb::handle value = NB_TUPLE_GET_ITEM(scalars.ptr(), i);
    call.is_default[i] = value.is_none();
    if (!call.is_default[i])
      call.scalars[i] = converted(call, argument, value);
    else if (argument.required)
      throw InvalidArgument(
          text(argument.name, ": got None, expected a value: there is no default"));
  }
}

void Kernel::set_default_scalars(Call& call) const {
  for (int i = 0; i < family_.num_scalars; ++i) {
    if (!call.is_default[i]) continue;
    const ScalarArgument& argument = family_.scalars[i];
    ScalarValue& value = call.scalars[i];
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
  }
}

// The number that a tensor on the CPU or a NumPy array without dimensions holds. Where that is
// another type than a number of Python's, it is refused there.
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
    check_gradients(call, name, tensor);
  }
  const bool is_number = is_tensor || (nb::hasattr(value, "ndim") && nb::hasattr(value, "item") &&
                                       value.attr("ndim").equal(nb::int_(0)));
  nb::object number = is_number ? value.attr("item")() : nb::none();
  if (!PyBool_Check(number.ptr()) && !PyLong_Check(number.ptr()) && !PyFloat_Check(number.ptr()))
    throw InvalidArgument(text(name, ": got a ", type_text(value), ", expected ", expected));
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
      throw InvalidArgument(text(argument.name, ": got a ", type_text(value), ", expected a str"));
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

void Kernel::output_shape(const Call& call, const TensorArgument& argument,
                          std::int64_t* shape) const {
  for (int i = 0; i < argument.rank; ++i) {
    const Dim& dim = argument.dims[i];
    shape[i] =
        dim.symbol >= 0 ? call.symbols[dim.symbol] : evaluate(dim.value, dim.text, call, true);
    if (shape[i] < 0 || shape[i] > kMaxExtent)
      throw InvalidArgument(text(entry_.key, ": the output ", argument.name, " ",
                                 shape_text(argument), " would have ", shape[i], " in dimension ",
                                 i, here(dim.text, call, true)));
  }
}

void Kernel::check_output(Call& call, int index, const std::int64_t* shape, PyObject* object) {
  const TensorArgument& argument = given_outputs_[index];
  TensorInfo& tensor = call.tensors[index];
  call.torch.read(object, argument.name, tensor);
  check_dtype(argument, tensor, dtypes_[index]);
  check_device(call, argument, tensor);
  if (tensor.rank != argument.rank || !std::equal(shape, shape + argument.rank, tensor.shape))
    throw InvalidArgument(text(argument.name, ": got shape ", shape_of(object), ", expected ",
                               shape_of(shape, argument.rank), " = ", shape_text(argument)));
  check_memory(argument, tensor, index);
  check_autograd(call, argument, tensor);
  check_apart(call, argument, index);
}

// What is written has no memory in common with the inputs, the outputs before it, or itself.
void Kernel::check_apart(const Call& call, const TensorArgument& argument, int index) const {
  const TensorInfo& tensor = call.tensors[index];
  const int size = size_in_bytes(dtypes_[index]);
  if (may_overlap_itself(tensor, size))
    throw InvalidArgument(text(argument.name, ": several of its elements share memory (strides ",
                               shape_of(tensor.strides, tensor.rank),
                               "), expected a tensor whose elements are apart; pass a clone"));
  const auto check = [&](int i) {
    if (i != index && call.bound[i].data != nullptr &&
        may_overlap(tensor, size, call.tensors[i], size_in_bytes(dtypes_[i])))
      throw InvalidArgument(text(argument.name, ": shares memory with ", family_.tensors[i].name,
                                 " (or cannot be shown not to), expected memory of its own"));
  };
  for (int n = 0; n < num_inputs_; ++n) check(inputs_[n]);
  if (argument.role == Role::output)
    for (int n = 0; outputs_[n] < index; ++n) check(outputs_[n]);
}

void Kernel::bind_inputs(Call& call, nb::handle inputs) {
  std::fill_n(call.bound_by, family_.num_symbols, std::int16_t{-1});
  if (has_optional_inputs_) std::fill_n(call.symbols, family_.num_symbols, 0);
  for (int n = 0; n < num_inputs_; ++n) {
    const int i = inputs_[n];
    const TensorArgument& argument = family_.tensors[i];
    PyObject* object = NB_TUPLE_GET_ITEM(inputs.ptr(), n);
    call.present[i] = !argument.optional || object != Py_None;
    if (!call.present[i]) {
      call.bound[i] = {nullptr, kNoStrides};
      continue;
    }
    TensorInfo& tensor = call.tensors[i];
    call.torch.read(object, argument.name, tensor);
    check_dtype(argument, tensor, dtypes_[i]);
    check_device(call, argument, tensor);
    if (call.first_input < 0 && !argument.on_host) call.first_input = i;
    bind_symbols(call, argument, tensor);
    check_memory(argument, tensor, i);
    check_autograd(call, argument, tensor);
    call.bound[i] = {tensor.data, tensor.strides};
  }
  if (has_input_expressions_) check_expressions(call);
  for (int n = 0; n < num_mutated_; ++n)
    if (call.present[mutated_[n]]) check_apart(call, family_.tensors[mutated_[n]], mutated_[n]);
  if (asks_device_) find_facts(call);
  check_requirements(call, false);
}

void Kernel::choose_outputs(Call& call, nb::handle requested, nb::handle out) const {
  for (int n = 0, optional = 0; n < num_outputs_; ++n) {
    const int i = outputs_[n];
    const TensorArgument& argument = family_.tensors[i];
    call.present[i] = true;
    if (argument.optional) {
      PyObject* asked = NB_TUPLE_GET_ITEM(requested.ptr(), optional++);
      if (!PyBool_Check(asked))
        throw InvalidArgument(
            text("return_", argument.name, ": got a ", type_text(asked), ", expected a bool"));
      call.present[i] = asked == Py_True;
    }
    call.num_wanted += call.present[i];
  }
  if (out.is_none()) return;
  // The items themselves, not what a subclass makes of them: no Python code runs here.
  const bool is_tuple = PyTuple_Check(out.ptr()), is_list = PyList_Check(out.ptr());
  const Py_ssize_t given = is_tuple  ? PyTuple_Size(out.ptr())
                           : is_list ? PyList_Size(out.ptr())
                                     : 1;
  if (given != call.num_wanted) {
    std::string needed;
    for (int n = 0; n < num_outputs_; ++n)
      if (call.present[outputs_[n]])
        needed += text(needed.empty() ? "" : ", ", family_.tensors[outputs_[n]].name);
    throw InvalidArgument(text("out: got ", given, given == 1 ? " tensor" : " tensors",
                               ", expected ", call.num_wanted, ": ", needed));
  }
  for (int n = 0, next = 0; n < num_outputs_; ++n)
    if (const int i = outputs_[n]; call.present[i])
      call.owned[i] = nb::borrow(is_tuple  ? PyTuple_GetItem(out.ptr(), next++)
                                 : is_list ? PyList_GetItem(out.ptr(), next++)
                                           : out.ptr());
}

void Kernel::allocate(Call& call, int index, const std::int64_t* shape) {
  const TensorArgument& argument = family_.tensors[index];
  call.owned[index] = call.torch.empty(shape, argument.rank, dtypes_[index], call.device());
  call.torch.read(call.owned[index].ptr(), argument.name, call.tensors[index]);
}

bool Kernel::bind_outputs(Call& call) {
  bool has_elements = false;
  for (int n = 0; n < num_mutated_; ++n)
    has_elements |= call.present[mutated_[n]] && call.tensors[mutated_[n]].numel() != 0;
  for (int n = 0; n < num_outputs_; ++n) {
    const int i = outputs_[n];
    const TensorArgument& argument = family_.tensors[i];
    call.bound[i] = {nullptr, kNoStrides};
    if (!call.present[i]) continue;
    std::int64_t shape[kMaxRank];
    output_shape(call, argument, shape);
    if (call.owned[i].is_valid())
      check_output(call, i, shape, call.owned[i].ptr());
    else
      allocate(call, i, shape);
    call.bound[i] = {call.tensors[i].data, call.tensors[i].strides};
    has_elements |= call.tensors[i].numel() != 0;
  }
  return has_elements;
}

// One allocation for all parts that are zeroed and one for the others; each part begins at a
// multiple of 256 bytes.
void Kernel::bind_workspace(Call& call, void* args) {
  std::int64_t offsets[kMaxWorkspaces], total = 0, zeroed = 0;
  void* parts[kMaxWorkspaces];
  for (int i = 0; i < target_.num_workspaces; ++i) {
    const WorkspaceEntry& part = target_.workspace[i];
    const Evaluated<std::int64_t> evaluated = part.elements(scope(call));
    const std::int64_t elements = evaluated.value;
    if (evaluated.error != nullptr)
      throw InvalidArgument(text(entry_.key, ": the workspace ", part.name, " ", part.text, ": ",
                                 evaluated.error, here(part.text, call, true)));
    if (elements < 0 || elements > kMaxElements)
      throw InvalidArgument(text(entry_.key, ": the workspace ", part.name, " ", part.text,
                                 " would have ", elements, " elements",
                                 here(part.text, call, true)));
    const Dtype dtype = part.dtype_parameter < 0
                            ? part.dtype
                            : static_cast<Dtype>(entry_.parameters[part.dtype_parameter]);
    std::int64_t& size = part.zeroed ? zeroed : total;
    offsets[i] = elements == 0 ? -1 : size;
    size += (elements * size_in_bytes(dtype) + 255) / 256 * 256;
  }
  TensorInfo memory, zeros;
  if (total > 0) {
    call.workspace = call.torch.empty(&total, 1, Dtype::u8, call.device());
    call.torch.read(call.workspace.ptr(), "workspace", memory);
  }
  if (zeroed > 0) {
    call.zeroed_workspace = call.torch.zeros(zeroed, call.device());
    call.torch.read(call.zeroed_workspace.ptr(), "workspace", zeros);
  }
  for (int i = 0; i < target_.num_workspaces; ++i) {
    void* const data = target_.workspace[i].zeroed ? zeros.data : memory.data;
    parts[i] = offsets[i] < 0 ? nullptr : static_cast<std::byte*>(data) + offsets[i];
  }
  target_.bind_workspace(args, parts);
}

void Kernel::allocate_trace(Call& call) {
  const TensorArgument& records = family_.trace->records;
  std::int64_t shape[kMaxRank];
  output_shape(call, records, shape);
  call.trace = call.torch.empty(shape, records.rank, Dtype::f32, call.device());
  call.trace.attr("fill_")(std::numeric_limits<float>::quiet_NaN());
  call.torch.read(call.trace.ptr(), records.name, call.records);
}

void Kernel::bind_trace(const Call& call, void* args) const {
  if (!call.wants_trace) return target_.bind_trace(args, nullptr, kNoStrides);
  const int last = call.records.rank - 1;
  std::int64_t strides[kMaxRank];
  for (int i = 0; i < last; ++i) strides[i] = call.records.strides[i] / call.records.shape[last];
  target_.bind_trace(args, call.records.data, strides);
}

void Kernel::launch(Call& call) {
  alignas(std::max_align_t) std::byte args[kMaxArgsBytes];
  family_.fill(args, call.bound, call.symbols, call.scalars);
  if (target_.num_workspaces > 0) bind_workspace(call, args);
  if (is_traced_) bind_trace(call, args);
  if (!asks_device_) find_facts(call);
  LaunchMemory memory(call.torch, call.device());
  LaunchContext context{.stream = nullptr,
                        .device = call.device().id,
                        .num_threads = 1,
                        .facts = call.facts,
                        .allocator = &LaunchMemory::allocate,
                        .call = &memory};
  if (is_cuda_)
    context.stream = call.torch.current_stream(context.device);
  else
    context.num_threads = static_cast<int>(call.facts.sm_count);
  LaunchResult result;
  {
    ReleaseGil released;
    result = launch_(args, context);
  }
  if (result.error == nullptr) [[likely]]
    return;
  if (result.argument != nullptr) throw InvalidArgument(rejected_text(result));
  memory.rethrow();
  std::string extents;
  for (int i = 0; i < family_.num_symbols; ++i) extents += text(family_.symbols[i], " ");
  throw std::runtime_error(text(entry_.key, ": ", result.error, here(extents.c_str(), call)));
}

nb::object Kernel::call(nb::tuple inputs, nb::tuple scalars, nb::tuple requested, nb::object out) {
  const bool has_operator = !dispatched_.is_none();
  if (has_operator && Torch::get().is_intercepted()) [[unlikely]]
    return dispatched_(key(), inputs, scalars, requested, out);
  try {
    return run(inputs, scalars, requested, out);
  } catch (const Transformed&) {
    if (!has_operator) throw;
    return dispatched_(key(), inputs, scalars, requested, out);
  }
}

nb::object Kernel::run(nb::tuple inputs, nb::tuple scalars, nb::tuple requested, nb::object out) {
  Call call;
  return perform(call, std::move(inputs), std::move(scalars), std::move(requested), std::move(out));
}

nb::tuple Kernel::trace(nb::tuple inputs, nb::tuple scalars, nb::tuple requested, nb::object out) {
  if (!is_traced_) throw nb::type_error("the kernel is not traced");
  if (Torch::get().is_intercepted())
    throw InvalidArgument(text(key(),
                               ": a trace cannot be recorded or transformed; call trace() "
                               "outside of make_fx, torch.jit.trace, torch.func and modes"));
  Call call;
  call.wants_trace = true;
  nb::object result =
      perform(call, std::move(inputs), std::move(scalars), std::move(requested), std::move(out));
  return nb::make_tuple(result, call.trace);
}

nb::object Kernel::perform(Call& call, nb::tuple inputs, nb::tuple scalars, nb::tuple requested,
                           nb::object out) {
  if (static_cast<int>(inputs.size()) != num_inputs_ ||
      static_cast<int>(scalars.size()) != family_.num_scalars ||
      static_cast<int>(requested.size()) != num_requested_)
    throw nb::type_error("inputs, scalars and requested must match the family's arguments");

  convert_scalars(call, scalars);
  choose_outputs(call, requested, out);
  bind_inputs(call, inputs);
  set_default_scalars(call);
  if (requires_scalars_) check_requirements(call, true);
  const bool has_elements = bind_outputs(call);
  if (call.wants_trace) allocate_trace(call);
  if (has_elements) {
    launch(call);
    for (int n = 0; n < num_mutated_; ++n)
      if (const int i = mutated_[n]; call.present[i])
        call.torch.mark_written(call.tensors[i].object);
    if (!out.is_none())
      for (int n = 0; n < num_outputs_; ++n)
        if (const int i = outputs_[n]; call.present[i])
          call.torch.mark_written(call.owned[i].ptr());
  }

  nb::object all = nb::none();
  for (int n = 0, next = 0; n < num_outputs_; ++n) {
    const int i = outputs_[n];
    if (!call.present[i]) continue;
    if (call.num_wanted == 1) return call.owned[i];
    if (next == 0) all = nb::steal(PyTuple_New(call.num_wanted));
    NB_TUPLE_SET_ITEM(all.ptr(), next++, call.owned[i].release().ptr());
  }
  return all;
}

}  // namespace kernelmint

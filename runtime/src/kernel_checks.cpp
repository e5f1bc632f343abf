// The checks of a call's tensors, and the names of arguments in messages.
#include <algorithm>
#include <cctype>
#include <string_view>

#include "kernel_call.h"
#include "overlap.h"

namespace kernelmint {
namespace {

std::string value_text(const ScalarArgument& argument, const ScalarValue& value) {
  if (argument.values != nullptr) return argument.values[value.integer];
  return is_floating(argument.dtype) ? text(value.floating) : text(value.integer);
}

std::string values_text(const ScalarArgument& argument, const ScalarValue* values) {
  if (argument.length == 0) return value_text(argument, *values);
  std::string result;
  for (int i = 0; i < argument.length; ++i)
    result += text(i ? ", " : "", value_text(argument, values[i]));
  return text("[", result, "]");
}

}  // namespace

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

std::string Kernel::shape_text(const TensorArgument& argument) const {
  std::string result = "[";
  for (int i = 0; i < argument.rank; ++i) result += text(i ? ", " : "", argument.dims[i].text);
  return result + "]";
}

// "; here H = 6, Hk = 4": the symbols, optional tensors, parameters, derived values, facts about
// the device and, once they are known, scalars that an expression names, and their values; empty
// if it names none.
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
        add(word, values_text(family_.scalars[i], &call.scalars[slots_[i]]));
    if (asks_device_ && word == "sm_count") add(word, text(call.facts.sm_count));
    if (asks_device_ && word == "max_shared_memory") add(word, text(call.facts.max_shared_memory));
    if (parameters_.contains(word.c_str())) add(word, to_text(parameters_[word.c_str()]));
  }
  return result;
}

Scope Kernel::scope(const Call& call) const {
  return {call.symbols, entry_.parameters, call.scalars, &call.facts, call.present, call.bound};
}

std::int64_t Kernel::evaluate(IntExpression expression, const char* expression_text,
                              const Call& call, bool scalars_known) const {
  const Evaluated<std::int64_t> result = expression(scope(call));
  if (result.error == nullptr) [[likely]]
    return result.value;
  throw InvalidArgument(text(entry_.key, ": ", expression_text, ": ", result.error,
                             here(expression_text, call, scalars_known)));
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
  const nb::object reason = nb::module_::import_("runtime.devices")
                                .attr("why_unavailable")(target_.name, architectures_, device.id);
  if (!reason.is_none()) throw TargetUnavailable(text(entry_.key, ": ", to_text(reason)));
  if (device.id < 64) ready_devices_ |= std::uint64_t{1} << device.id;
}

std::string Kernel::no_gradient(const Call& call, const char* name,
                                const TensorInfo& tensor) const {
  if (!call.is_grad_enabled || !call.torch.requires_grad(tensor.object)) return {};
  return text(name, ": requires_grad is set and grad mode is on, but ", family_.name,
              " has no gradient for it; call it under torch.no_grad() or pass ", name, ".detach()");
}

// Autograd sees only the operator, which differentiates the call or refuses to.
void Kernel::check_gradient(const Call& call, const TensorArgument& argument,
                            const TensorInfo& tensor) const {
  if (const std::string wrong = no_gradient(call, argument.name, tensor); !wrong.empty())
    throw ThroughOperator(wrong);
}

// Refuses a tensor as copy_ does, since autograd could not see that its values changed.
void Kernel::check_writable(const Call& call, const TensorArgument& argument,
                            TensorInfo& tensor) const {
  tensor.is_inference = call.torch.is_inference(tensor.object);
  if (tensor.is_inference && !call.torch.inference_mode_enabled())
    throw InvalidArgument(text(argument.name,
                               ": got an inference tensor, which may be written within "
                               "torch.inference_mode() alone; pass a clone"));
}

// PyTorch negates the imaginary part of a conjugate lazily; the part's elements are apart. Most
// tensors' elements are not apart, which the strides show without asking PyTorch.
void Kernel::check_negative(Call& call, const TensorArgument& argument,
                            const TensorInfo& tensor) const {
  const auto dtype = static_cast<Dtype>(tensor.dtype);
  const bool is_complex = dtype == Dtype::complex64 || dtype == Dtype::complex128;
  if (is_complex && call.torch.has_conj_bit(tensor.object))
    throw InvalidArgument(
        text(argument.name,
             ": got a lazily conjugated view (is_conj() is true), expected its values in "
             "memory; pass ",
             argument.name, ".resolve_conj()"));
  const int last = tensor.rank - 1;
  if (last >= 0 && tensor.shape[last] > 1 && tensor.strides[last] == 1) return;
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
  // A contiguous tensor always passes: if the rows' length is not a multiple of the alignment, the
  // strides must be multiples of a half, a quarter, … of the alignment that divides the length.
  std::int64_t unit = alignment;
  if (last >= 0)
    while (shape[last] * size % unit != 0) unit /= 2;
  for (int i = 0; i < last; ++i)
    if (shape[i] > 1 && strides[i] * size % unit != 0)
      throw InvalidArgument(text(argument.name, ": got a stride of ", strides[i] * size,
                                 " bytes in dimension ", i, ", expected a multiple of ", unit, " (",
                                 entry_.key, "); pass ", argument.name, ".contiguous()"));
}

void Kernel::bind_symbols(Call& call, int index, const TensorArgument& argument,
                          const TensorInfo& tensor) const {
  if (tensor.rank != argument.rank)
    throw InvalidArgument(text(argument.name, ": got shape ", shape_of(tensor.object),
                               ", expected ", static_cast<int>(argument.rank), " dimensions, ",
                               shape_text(argument)));
  for (int i = 0; i < tensor.rank; ++i) {
    const std::int64_t extent = tensor.shape[i];
    if (extent > kMaxExtent && !argument.is_flat)
      throw InvalidArgument(text(argument.name, ": got ", extent, " in dimension ", i, " (",
                                 argument.dims[i].text, "), expected at most ", kMaxExtent,
                                 ": kernels count each extent in 32 bits"));
    const int symbol = argument.dims[i].symbol;
    if (symbol < 0) continue;
    if (call.bound_by[symbol] < 0) {
      call.symbols[symbol] = extent;
      call.bound_by[symbol] = static_cast<std::int16_t>(index);
    } else if (call.symbols[symbol] != extent && argument.is_flat) {
      throw InvalidArgument(text(argument.name, ": got ", extent, " elements, expected ",
                                 argument.dims[0].text, " = ", call.symbols[symbol], " as in ",
                                 binder_of(call, symbol)));
    } else if (call.symbols[symbol] != extent) {
      throw InvalidArgument(text(argument.name, ": got shape ", shape_of(tensor.shape, tensor.rank),
                                 ", expected ", shape_text(argument), " with ",
                                 family_.symbols[symbol], " = ", call.symbols[symbol], " as in ",
                                 binder_of(call, symbol), "; dimension ", i, " is ", extent));
    }
  }
}

void Kernel::check_expressions(const Call& call, const TensorArgument& argument,
                               const TensorInfo& tensor) const {
  for (int i = 0; i < argument.rank; ++i) {
    const Dim& dim = argument.dims[i];
    if (dim.symbol >= 0) continue;
    const std::int64_t needed = evaluate(dim.value, dim.text, call);
    if (tensor.shape[i] != needed)
      throw InvalidArgument(
          text(argument.name, ": got shape ", shape_of(tensor.shape, argument.rank), ", expected ",
               shape_text(argument), ": dimension ", i, " must be ", needed, here(dim.text, call)));
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

void Kernel::check_output(Call& call, int index, const std::int64_t* shape, PyObject* object) {
  const TensorArgument& argument = given_outputs_[index];
  TensorInfo& tensor = call.tensors[index];
  call.torch.read(object, argument.name, tensor);
  if (call.orders != nullptr && !call.orders[index].apply(tensor))
    throw InvalidArgument(text(argument.name, ": got shape ", shape_of(object), ", expected ",
                               call.orders[index].rank, " dimensions"));
  check_dtype(argument, tensor, dtypes_[index]);
  check_device(call, argument, tensor);
  if (tensor.rank != argument.rank || !std::equal(shape, shape + argument.rank, tensor.shape))
    throw InvalidArgument(text(argument.name, ": got shape ", shape_of(object), ", expected ",
                               shape_of(shape, argument.rank), " = ", shape_text(argument)));
  check_memory(argument, tensor, index);
  check_writable(call, argument, tensor);
  check_gradient(call, argument, tensor);
  check_negative(call, argument, tensor);
  check_apart(call, argument, index);
}

void Kernel::check_self_apart(const TensorArgument& argument, const TensorInfo& tensor,
                              int index) const {
  if (may_overlap_itself(tensor, size_in_bytes(dtypes_[index])))
    throw InvalidArgument(text(argument.name, ": several of its elements share memory (strides ",
                               shape_of(tensor.strides, tensor.rank),
                               "), expected a tensor whose elements are apart; pass a clone"));
}

// Checks that a written tensor has no memory in common with the inputs, the outputs before it, or
// itself.
void Kernel::check_apart(const Call& call, const TensorArgument& argument, int index) const {
  const TensorInfo& tensor = call.tensors[index];
  const int size = size_in_bytes(dtypes_[index]);
  check_self_apart(argument, tensor, index);
  const auto check = [&](int i) {
    if (i != index && call.bound[i].data != nullptr &&
        may_overlap(tensor, size, call.tensors[i], size_in_bytes(dtypes_[i])))
      throw InvalidArgument(text(argument.name, ": shares memory with ", family_.tensors[i].name,
                                 " (or cannot be shown not to), expected memory of its own"));
  };
  for (int n = 0; n < num_inputs_; ++n)
    if (!family_.tensors[inputs_[n]].is_list) check(inputs_[n]);
  if (argument.role == Role::output)
    for (int n = 0; outputs_[n] < index; ++n) check(outputs_[n]);
  if (argument.role == Role::output && num_lists_ > 0)
    check_apart_from_lists(call, argument, index);
}

void Kernel::bind_inputs(Call& call, PyObject* const* inputs) {
  std::fill_n(call.bound_by, family_.num_symbols, std::int16_t{-1});
  if (has_optional_inputs_) std::fill_n(call.symbols, family_.num_symbols, 0);
  for (int n = 0; n < num_inputs_; ++n) {
    const int i = inputs_[n];
    const TensorArgument& argument = family_.tensors[i];
    if (argument.is_list) continue;
    PyObject* object = inputs[n];
    call.present[i] = !argument.optional || object != Py_None;
    if (!call.present[i]) {
      call.bound[i] = {nullptr, kNoStrides};
      continue;
    }
    TensorInfo& tensor = call.tensors[i];
    if (!call.are_inputs_read) call.torch.read(object, argument.name, tensor);
    check_dtype(argument, tensor, dtypes_[i]);
    check_device(call, argument, tensor);
    if (call.first_input < 0 && !argument.on_host) call.first_input = i;
    bind_symbols(call, i, argument, tensor);
    check_memory(argument, tensor, i);
    check_negative(call, argument, tensor);
    call.bound[i] = {address_of(tensor), tensor.strides};
  }
  if (num_lists_ > 0) bind_lists(call, inputs);
  for (int n = 0; n < num_inputs_ && has_input_expressions_; ++n)
    if (const int i = inputs_[n]; call.present[i] && !family_.tensors[i].is_list)
      check_expressions(call, family_.tensors[i], call.tensors[i]);
  for (int n = 0; n < num_mutated_; ++n)
    if (const int i = mutated_[n]; call.present[i]) {
      check_apart(call, family_.tensors[i], i);
      check_writable(call, family_.tensors[i], call.tensors[i]);
    }
  if (num_lists_ > 0) check_lists_apart(call);
  if (call.first_input < 0) return;
  if (asks_device_) find_facts(call);
  check_requirements(call, false);
  for (int n = 0; n < num_inputs_; ++n)  // last: the operator gets only calls that a kernel takes
    if (const int i = inputs_[n]; family_.tensors[i].is_list)
      check_gradients_of_list(call, i);
    else if (call.present[i])
      check_gradient(call, family_.tensors[i], call.tensors[i]);
}

}  // namespace kernelmint

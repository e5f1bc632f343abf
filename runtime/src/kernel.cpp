#include "kernel.h"

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <memory>
#include <numeric>

#include "gil.h"
#include "kernel_call.h"
#include "launch_memory.h"
#include "processor.h"

namespace kernelmint {
namespace {

constexpr std::int64_t kMaxElements = std::int64_t{1} << 50;  // a workspace's: sums fit in 64 bits

// The message about a value that a kernel refused: "x_offsets[3]: got 5, expected 9 to 12: ...".
std::string rejected_text(const LaunchResult& result) {
  const std::string element = result.index < 0 ? "" : text("[", result.index, "]");
  const std::string range =
      result.least == result.most ? text(result.least) : text(result.least, " to ", result.most);
  return text(result.argument, element, ": got ", result.value, ", expected ", range, ": ",
              result.error);
}

// A span of PyTorch's profiler, if one is active.
class Profiled {
 public:
  Profiled(Torch& torch, const char* name) : span_(torch.profiled(name)) {
    if (span_.is_valid()) span_.attr("__enter__")();
  }
  ~Profiled() {
    if (!span_.is_valid()) return;
    PyObject* const left =
        PyObject_CallMethod(span_.ptr(), "__exit__", "OOO", Py_None, Py_None, Py_None);
    if (left == nullptr) PyErr_WriteUnraisable(span_.ptr());
    Py_XDECREF(left);
  }
  Profiled(const Profiled&) = delete;
  Profiled& operator=(const Profiled&) = delete;

 private:
  nb::object span_;
};

// The slots of generated kernels' objects, set when the first object is served.
std::atomic<const Attribute*> native_slot = nullptr;
// The call of a Python function, unless it is set to another.
std::atomic<Vectorcall> python_call = nullptr;

}  // namespace

bool DimensionOrder::apply(TensorInfo& tensor) const {
  if (rank == 0) return true;
  if (tensor.rank != rank) return false;
  std::int64_t shape[kMaxRank], strides[kMaxRank];
  std::fill_n(shape, kernel_rank, 1);
  std::fill_n(strides, kernel_rank, 1);
  for (int i = 0; i < rank; ++i) {
    shape[dims[i]] = tensor.shape[i];
    strides[dims[i]] = tensor.strides[i];
  }
  std::copy_n(shape, kernel_rank, tensor.shape_storage);
  std::copy_n(strides, kernel_rank, tensor.strides_storage);
  tensor.shape = tensor.shape_storage;
  tensor.strides = tensor.strides_storage;
  tensor.rank = kernel_rank;
  return true;
}

Kernel::Kernel(const FamilyEntry& family, const TargetEntry& target, const KernelEntry& entry,
               nb::tuple architectures, nb::dict parameters, nb::object dispatched, nb::dict likes)
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
  std::fill_n(likes_, kMaxTensors, std::int8_t{-1});
  for (const auto& [output, input] : likes)
    likes_[nb::cast<int>(output)] = nb::cast<std::int8_t>(input);
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
      num_filled_ += argument.fill.is_set;
      num_requested_ += argument.optional;
      continue;
    }
    inputs_[num_inputs_++] = i;
    has_optional_inputs_ |= argument.optional;
    num_lists_ += argument.is_list;
    if (argument.is_list) continue;
    if (argument.mutated) mutated_[num_mutated_++] = i;
    for (int d = 0; d < argument.rank; ++d) has_input_expressions_ |= argument.dims[d].symbol < 0;
  }
  for (int i = 0, slot = 0; i < family.num_scalars; ++i) {
    slots_[i] = slot;
    slot += std::max(family.scalars[i].length, 1);
  }
  for (int i = 0; i < family.num_requirements; ++i)
    requires_scalars_ |= family.requirements[i].needs_scalars;
  for (int i = 0; i < target.num_requirements; ++i)
    requires_scalars_ |= target.requirements[i].needs_scalars;
  for (int i = 0; i < target.num_workspaces; ++i) num_filled_ += target.workspace[i].fill.is_set;
}

void Kernel::find_facts(Call& call) const {
  call.facts =
      is_cuda_ ? call.torch.cuda_facts(call.device().id) : DeviceFacts{call.torch.num_threads(), 0};
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

void Kernel::choose_outputs(Call& call, PyObject* const* requested, PyObject* out) const {
  for (int n = 0, optional = 0; n < num_outputs_; ++n) {
    const int i = outputs_[n];
    const TensorArgument& argument = family_.tensors[i];
    call.present[i] = true;
    if (argument.optional) {
      PyObject* asked = requested[optional++];
      if (!PyBool_Check(asked))
        throw InvalidArgument(
            text("return_", argument.name, ": got ", type_text(asked), ", expected a bool"));
      call.present[i] = asked == Py_True;
    }
    call.num_wanted += call.present[i];
  }
  if (out == Py_None) return;
  // The items are read without the methods of a subclass: no Python code runs here.
  const bool is_tuple = PyTuple_Check(out), is_list = PyList_Check(out);
  const Py_ssize_t given = is_tuple ? PyTuple_Size(out) : is_list ? PyList_Size(out) : 1;
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
      call.owned.set(i, is_tuple || is_list ? item_of(out, next++) : nb::borrow(out));
}

void Kernel::allocate(Call& call, int index, const std::int64_t* shape) {
  const int rank = family_.tensors[index].rank;
  const char* const name = family_.tensors[index].name;
  const DimensionOrder* const order = call.orders == nullptr ? nullptr : &call.orders[index];
  const bool is_permuted = order != nullptr && order->rank != 0;
  if (!is_permuted && likes_[index] < 0) {
    call.owned.set(index, call.torch.empty(shape, rank, dtypes_[index], call.device()));
    call.torch.read(call.owned.at(index), name, call.tensors[index]);
    return;
  }
  int inner[kMaxRank];  // the dimensions, the innermost in memory last
  std::iota(inner, inner + rank, 0);
  if (likes_[index] >= 0) {  // the order of runtime/operators/definition.py
    const std::int64_t* const like = call.tensors[likes_[index]].strides;
    std::stable_sort(inner, inner + rank, [&](int a, int b) {
      return like[a] != like[b] && (like[a] == 0 || (like[b] != 0 && like[a] > like[b]));
    });
  }
  std::int64_t strides[kMaxRank], sizes[kMaxRank], steps[kMaxRank], step = 1;
  for (int i = rank - 1; i >= 0; --i) {
    strides[inner[i]] = step;
    step *= std::max<std::int64_t>(shape[inner[i]], 1);
  }
  const int num_dims = is_permuted ? order->rank : rank;
  for (int i = 0; i < num_dims; ++i) {
    const int dim = is_permuted ? order->dims[i] : i;
    sizes[i] = shape[dim];
    steps[i] = strides[dim];
  }
  for (int dim = 0; num_dims < rank && dim < rank; ++dim)
    if (shape[dim] != 1 && std::count(order->dims, order->dims + num_dims, dim) == 0)
      throw InvalidArgument(text(entry_.key, ": the output ", name, " would have ", shape[dim],
                                 " in dimension ", dim, ", which this layout leaves out"));
  call.owned.set(index,
                 call.torch.empty_strided(sizes, steps, num_dims, dtypes_[index], call.device()));
  call.torch.read(call.owned.at(index), name, call.tensors[index]);
  if (is_permuted) order->apply(call.tensors[index]);
}

bool Kernel::bind_outputs(Call& call) {
  bool has_elements = call.lists != nullptr && call.lists->are_written;
  for (int n = 0; n < num_mutated_; ++n)
    has_elements |= call.present[mutated_[n]] && call.tensors[mutated_[n]].numel() != 0;
  for (int n = 0; n < num_outputs_; ++n) {
    const int i = outputs_[n];
    const TensorArgument& argument = family_.tensors[i];
    call.bound[i] = {nullptr, kNoStrides};
    if (!call.present[i]) continue;
    std::int64_t shape[kMaxRank];
    output_shape(call, argument, shape);
    if (call.owned.has(i))
      check_output(call, i, shape, call.owned.at(i));
    else
      allocate(call, i, shape);
    call.bound[i] = {address_of(call.tensors[i]), call.tensors[i].strides};
    has_elements |= call.tensors[i].numel() != 0;
  }
  return has_elements;
}

// One allocation for all zeroed parts, one for all parts that are not filled, and one for each
// other part; each part begins at a multiple of 256 bytes.
void Kernel::bind_workspace(Call& call, void* args) {
  std::int64_t offsets[kMaxWorkspaces], total = 0, zeroed = 0;
  void* parts[kMaxWorkspaces];
  const auto hold = [&](nb::object tensor) {
    TensorInfo memory;
    call.torch.read(tensor.ptr(), "workspace", memory);
    call.workspace.push_back(std::move(tensor));
    return memory.data;
  };
  for (int i = 0; i < target_.num_workspaces; ++i) {
    const WorkspaceEntry& part = target_.workspace[i];
    const Evaluated<std::int64_t> evaluated = part.elements(scope(call));
    const std::int64_t elements = evaluated.value;
    if (evaluated.error != nullptr)
      throw InvalidArgument(text(entry_.key, ": the workspace ", part.name, " ", part.text, ": ",
                                 evaluated.error, here(part.text, call, true)));
    if (elements < 0)
      throw InvalidArgument(text(entry_.key, ": the workspace ", part.name, " ", part.text,
                                 " would have an extent of ", elements,
                                 here(part.text, call, true)));
    if (elements > kMaxElements)
      throw InvalidArgument(text(entry_.key, ": the workspace ", part.name, " ", part.text,
                                 " would have ", elements, " elements",
                                 here(part.text, call, true)));
    const Dtype dtype = part.dtype_parameter < 0
                            ? part.dtype
                            : static_cast<Dtype>(entry_.parameters[part.dtype_parameter]);
    offsets[i] = -1;
    parts[i] = nullptr;
    if (elements == 0) continue;
    if (part.fill.is_set && part.fill.value != 0) {
      const nb::object filled = call.torch.empty(&elements, 1, dtype, call.device());
      call.torch.fill(filled, part.fill.value);
      parts[i] = hold(filled);
      continue;
    }
    std::int64_t& size = part.fill.is_set ? zeroed : total;
    offsets[i] = size;
    size += (elements * size_in_bytes(dtype) + 255) / 256 * 256;
  }
  void* const memory =
      total == 0 ? nullptr : hold(call.torch.empty(&total, 1, Dtype::u8, call.device()));
  void* const zeros = zeroed == 0 ? nullptr : hold(call.torch.zeros(zeroed, call.device()));
  for (int i = 0; i < target_.num_workspaces; ++i) {
    void* const data = target_.workspace[i].fill.is_set ? zeros : memory;
    if (offsets[i] >= 0) parts[i] = static_cast<std::byte*>(data) + offsets[i];
  }
  target_.bind_workspace(args, parts);
}

void Kernel::fill_outputs(Call& call) const {
  for (int n = 0; n < num_outputs_; ++n)
    if (const Filling& fill = family_.tensors[outputs_[n]].fill; fill.is_set)
      if (call.present[outputs_[n]]) call.torch.fill(call.owned.at(outputs_[n]), fill.value);
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
  if (num_filled_ > 0) fill_outputs(call);
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
    for (int i = 1; i < call.num_launches && result.error == nullptr; ++i)
      result = launch_(args, context);
  }
  if (result.error == nullptr) [[likely]]
    return;
  if (result.argument != nullptr) throw RejectedValue(rejected_text(result));
  memory.rethrow();
  std::string extents;
  for (int i = 0; i < family_.num_symbols - family_.num_element_symbols; ++i)
    extents += text(family_.symbols[i], " ");
  throw std::runtime_error(text(entry_.key, ": ", result.error, here(extents.c_str(), call)));
}

nb::object Kernel::call(nb::tuple inputs, nb::tuple scalars, nb::tuple requested, nb::object out) {
  const bool has_operator = !dispatched_.is_none();
  if (has_operator && Torch::get().is_intercepted()) [[unlikely]]
    return dispatched_(key(), inputs, scalars, requested, out);
  try {
    Call call;
    return perform(call, values_of(inputs, scalars, requested, out));
  } catch (const ThroughOperator&) {
    if (!has_operator) throw;
    return dispatched_(key(), inputs, scalars, requested, out);
  }
}

nb::object Kernel::run(nb::tuple inputs, nb::tuple scalars, nb::tuple requested, nb::object out) {
  Call call;
  call.wants_all = out.is_none();
  return perform(call, values_of(inputs, scalars, requested, out));
}

nb::object Kernel::launch_times(nb::tuple inputs, nb::tuple scalars, nb::tuple requested,
                                nb::object out, int count) {
  if (num_filled_ > 0)
    throw InvalidArgument(text(key(), ": outputs or workspaces are filled before each launch"));
  Call call;
  call.num_launches = count;
  return perform(call, values_of(inputs, scalars, requested, out));
}

nb::tuple Kernel::trace(nb::tuple inputs, nb::tuple scalars, nb::tuple requested, nb::object out) {
  if (!is_traced_) throw nb::type_error("the kernel is not traced");
  if (Torch::get().is_intercepted())
    throw InvalidArgument(text(key(),
                               ": a trace cannot be recorded or transformed; call trace() "
                               "outside of make_fx, torch.jit.trace, torch.func and modes"));
  Call call;
  call.wants_trace = true;
  nb::object result = perform(call, values_of(inputs, scalars, requested, out));
  return nb::make_tuple(result, call.trace);
}

void Kernel::serve(nb::object kernel) {
  const nb::object method = kernel.type().attr("__call__");
  const Signature& signature = Signature::of(method);
  if (signature.size() != num_inputs_ + family_.num_scalars + num_requested_ + (num_outputs_ > 0))
    throw nb::type_error("__call__ must take the family's arguments");
  if (native_slot == nullptr) {
    const Attribute* none = nullptr;
    auto slot = std::make_unique<Attribute>(kernel, "_native");
    if (native_slot.compare_exchange_strong(none, slot.get())) slot.release();
  }
  const Vectorcall before = set_vectorcall(method, &take_call);
  if (before == nullptr) return;
  if (before != &take_call) python_call = before;
  method_ = method.ptr();
  signature_ = &signature;
}

PyObject* Kernel::take_call(PyObject* method, PyObject* const* arguments, std::size_t flags,
                            PyObject* names) try {
  const auto otherwise = [&] { return python_call.load()(method, arguments, flags, names); };
  const Py_ssize_t count = PyVectorcall_NARGS(flags);
  if (count == 0) return otherwise();
  const nb::object native = native_slot.load()->find(arguments[0]);
  static const nb::handle type = nb::type<Kernel>();
  if (!native.is_valid() || !native.type().is(type)) return otherwise();
  Kernel& self = *nb::inst_ptr<Kernel>(native);
  Values values;
  if (self.method_ != method ||
      !self.signature_->bind(arguments + 1, count - 1, names, values.data()))
    return otherwise();
  if (self.num_outputs_ == 0) values[self.signature_->size()] = Py_None;
  if (Torch::get().is_intercepted()) [[unlikely]]
    return otherwise();
  Call call;
  return self.perform(call, values).release().ptr();
} catch (const ThroughOperator&) {
  return python_call.load()(method, arguments, flags, names);
} catch (...) {
  return raise_current();
}

Kernel::Values Kernel::values_of(nb::handle inputs, nb::handle scalars, nb::handle requested,
                                 nb::handle out) const {
  if (PyTuple_Size(inputs.ptr()) != num_inputs_ ||
      PyTuple_Size(scalars.ptr()) != family_.num_scalars ||
      PyTuple_Size(requested.ptr()) != num_requested_)
    throw nb::type_error("inputs, scalars and requested must match the family's arguments");
  Values values;
  PyObject** next = values.data();
  for (int i = 0; i < num_inputs_; ++i) *next++ = NB_TUPLE_GET_ITEM(inputs.ptr(), i);
  for (int i = 0; i < family_.num_scalars; ++i) *next++ = NB_TUPLE_GET_ITEM(scalars.ptr(), i);
  for (int i = 0; i < num_requested_; ++i) *next++ = NB_TUPLE_GET_ITEM(requested.ptr(), i);
  *next = out.ptr();
  return values;
}

nb::object Kernel::perform(Call& call, const Values& values) {
  PyObject* const* const inputs = values.data();
  PyObject* const* const scalars = inputs + num_inputs_;
  PyObject* const* const requested = scalars + family_.num_scalars;
  PyObject* const out = requested[num_requested_];
  convert_scalars(call, scalars);
  choose_outputs(call, requested, out);
  bind_inputs(call, inputs);
  if (call.first_input < 0) return nb::none();  // all lists are empty
  set_default_scalars(call);
  if (requires_scalars_) check_requirements(call, true);
  const bool has_elements = bind_outputs(call);
  const Profiled span(call.torch, entry_.key);  // no span for a call of the operator
  if (call.wants_trace) allocate_trace(call);
  if (has_elements) {
    call.is_launched = true;
    launch(call);
    for (int n = 0; n < num_mutated_; ++n)
      if (const int i = mutated_[n]; call.present[i]) call.torch.mark_written(call.tensors[i]);
    for (int i = 0; i < family_.num_tensors && num_lists_ > 0; ++i)
      if (family_.tensors[i].is_list && family_.tensors[i].mutated)
        call.torch.mark_written(call.lists->of(i));
    if (out != Py_None)
      for (int n = 0; n < num_outputs_; ++n)
        if (const int i = outputs_[n]; call.present[i]) call.torch.mark_written(call.tensors[i]);
  }

  const int num_returned = call.wants_all ? num_outputs_ : call.num_wanted;
  nb::object all = nb::none();
  for (int n = 0, next = 0; n < num_outputs_; ++n) {
    const int i = outputs_[n];
    if (!call.present[i]) {
      if (!call.wants_all) continue;
      constexpr std::int64_t kNothing = 0;
      call.owned.set(i, call.torch.empty(&kNothing, 1, dtypes_[i], call.device()));
    }
    if (num_returned == 1) return call.owned.take(i);
    if (next == 0) all = nb::steal(PyTuple_New(num_returned));
    NB_TUPLE_SET_ITEM(all.ptr(), next++, call.owned.take(i).release().ptr());
  }
  return all;
}

}  // namespace kernelmint

// The lists of tensors of a call: their checks, and what kernels see of them.
#include <algorithm>
#include <utility>
#include <vector>

#include "kernel_call.h"
#include "overlap.h"

namespace kernelmint {
namespace {

// Returns whether the elements lie without gaps, in some order of the dimensions.
bool is_dense(const TensorInfo& tensor) {
  std::pair<std::int64_t, std::int64_t> dims[kMaxRank];  // strides and extents
  int count = 0;
  for (int i = 0; i < tensor.rank; ++i)
    if (tensor.shape[i] != 1) dims[count++] = {tensor.strides[i], tensor.shape[i]};
  std::sort(dims, dims + count);
  std::int64_t size = 1;
  for (int i = 0; i < count; size *= dims[i++].second)
    if (dims[i].first != size) return tensor.numel() == 0;
  return true;
}

bool is_contiguous(const TensorInfo& tensor) {
  std::int64_t size = 1;
  for (int i = tensor.rank - 1; i >= 0; size *= tensor.shape[i--])
    if (tensor.shape[i] != 1 && tensor.strides[i] != size) return false;
  return true;
}

// Returns whether an element of one dense tensor lies where the other one has it.
bool are_ordered_alike(const TensorInfo& a, const TensorInfo& b) {
  if (is_contiguous(a) && is_contiguous(b)) return true;
  if (a.rank != b.rank) return false;
  for (int i = 0; i < a.rank; ++i)
    if (a.shape[i] != b.shape[i] || (a.shape[i] != 1 && a.strides[i] != b.strides[i])) return false;
  return true;
}

// A dense tensor as kernels see it in a flat list.
struct Flattened : TensorInfo {
  explicit Flattened(const TensorInfo& tensor) : TensorInfo(tensor) {
    shape_storage[0] = tensor.numel();
    strides_storage[0] = 1;
    shape = shape_storage;
    strides = strides_storage;
    rank = 1;
  }
  Flattened(const Flattened&) = delete;
  Flattened& operator=(const Flattened&) = delete;
};

// A tensor's memory, of a list or, with a place of -1, by itself.
struct Memory {
  std::uintptr_t begin, end;
  const TensorInfo* tensor;
  int index, place;
};

}  // namespace

std::string Kernel::binder_of(const Call& call, int symbol) const {
  const char* const name = family_.tensors[call.bound_by[symbol]].name;
  if (symbol < family_.num_symbols - family_.num_element_symbols) return name;
  return text(name, "[", call.lists->place, "]");
}

void Kernel::bind_length(Call& call, int index) const {
  const TensorArgument& argument = family_.tensors[index];
  const std::int64_t length = call.lists->sizes[index];
  const int symbol = argument.length.symbol;
  if (symbol >= 0 && call.bound_by[symbol] < 0) {
    call.symbols[symbol] = length;
    call.bound_by[symbol] = static_cast<std::int16_t>(index);
    return;
  }
  const std::int64_t needed = symbol >= 0
                                  ? call.symbols[symbol]
                                  : evaluate(argument.length.value, argument.length.text, call);
  if (length == needed) return;
  std::string expected = text(needed);
  if (expected != argument.length.text) expected += text(" = ", argument.length.text);
  throw InvalidArgument(text(
      argument.name, ": got ", length, length == 1 ? " tensor" : " tensors", ", expected ",
      expected,
      symbol >= 0 ? text(" as in ", binder_of(call, symbol)) : here(argument.length.text, call)));
}

void Kernel::bind_element(Call& call, int index, const TensorArgument& argument) {
  Lists& lists = *call.lists;
  TensorInfo& tensor = lists.of(index)[lists.place];
  call.torch.read(NB_TUPLE_GET_ITEM(lists.items[index].ptr(), lists.place), argument.name, tensor);
  check_dtype(argument, tensor, dtypes_[index]);
  check_device(call, argument, tensor);
  if (call.first_input < 0) {
    call.tensors[index].object = tensor.object;
    call.tensors[index].device = tensor.device;
    call.first_input = index;
  }
  if (!argument.is_flat) {
    bind_symbols(call, index, argument, tensor);
    check_memory(argument, tensor, index);
  } else {
    bind_flat(call, index, argument, tensor);
  }
  check_negative(call, argument, tensor);
  if (!argument.mutated) return;
  check_self_apart(argument, tensor, index);
  check_writable(call, argument, tensor);
  lists.are_written |= tensor.numel() != 0;
}

// Tensors at the same place whose sizes are one symbol have one order of their elements.
void Kernel::bind_flat(Call& call, int index, const TensorArgument& argument,
                       const TensorInfo& tensor) const {
  if (tensor.rank > kMaxRank)
    throw InvalidArgument(
        text(argument.name, ": got ", tensor.rank, " dimensions, expected at most ", kMaxRank));
  if (!is_dense(tensor))
    throw InvalidArgument(text(argument.name, ": got shape ", shape_of(tensor.object),
                               " with strides ", shape_of(tensor.strides, tensor.rank),
                               ", expected elements without gaps; pass ", argument.name,
                               ".contiguous()"));
  const Flattened flat(tensor);
  bind_symbols(call, index, argument, flat);
  check_memory(argument, flat, index);
  const int symbol = argument.dims[0].symbol;
  if (symbol < family_.num_symbols - family_.num_element_symbols) return;
  if (!family_.tensors[call.bound_by[symbol]].is_flat) return;
  const TensorInfo& first = call.lists->of(call.bound_by[symbol])[call.lists->place];
  if (tensor.numel() == 0 || are_ordered_alike(tensor, first)) return;
  throw InvalidArgument(text(
      argument.name, ": got shape ", shape_of(tensor.object), " with strides ",
      shape_of(tensor.strides, tensor.rank), ", expected the order of ", binder_of(call, symbol),
      ", ", shape_of(first.object), " with strides ", shape_of(first.strides, first.rank)));
}

void Kernel::bind_lists(Call& call, PyObject* const* inputs) {
  call.lists = std::make_unique<Lists>();
  Lists& lists = *call.lists;
  const auto for_each = [&](auto visit) {
    for (int n = 0; n < num_inputs_; ++n)
      if (family_.tensors[inputs_[n]].is_list) visit(inputs_[n], inputs[n]);
  };
  const auto words = [&](int i) { return 1 + 2 * std::max<int>(family_.tensors[i].rank, 1); };
  std::int64_t num_tensors = 0, num_words = 0, longest = 0;
  for_each([&](int i, PyObject* object) {
    const bool is_list = PyList_Check(object);
    if (!is_list && !PyTuple_Check(object))
      throw InvalidArgument(text(family_.tensors[i].name, ": got ", type_text(object),
                                 ", expected a list or a tuple of tensors"));
    // A tuple of the items themselves, whatever a subclass makes of them: no Python code runs here.
    lists.items[i] = checked(is_list ? PyList_AsTuple(object)
                                     : PyTuple_GetSlice(object, 0, PyTuple_Size(object)));
    lists.first[i] = static_cast<int>(num_tensors);
    lists.sizes[i] = PyTuple_Size(lists.items[i].ptr());
    num_tensors += lists.sizes[i];
    num_words += lists.sizes[i] * words(i);
    longest = std::max(longest, lists.sizes[i]);
    call.present[i] = true;
    if (family_.tensors[i].length.symbol >= 0) bind_length(call, i);
  });
  for_each([&](int i, PyObject*) {
    if (family_.tensors[i].length.symbol < 0) bind_length(call, i);
  });

  lists.tensors = std::make_unique_for_overwrite<TensorInfo[]>(num_tensors);
  const int num_shared = family_.num_symbols - family_.num_element_symbols;
  for (; lists.place < longest; ++lists.place) {
    std::fill(call.bound_by + num_shared, call.bound_by + family_.num_symbols, std::int16_t{-1});
    const auto for_each_there = [&](auto check) {
      for_each([&](int i, PyObject*) {
        if (lists.place < lists.sizes[i])
          as_element(family_.tensors[i], lists.place,
                     [&](const TensorArgument& argument) { check(i, argument); });
      });
    };
    for_each_there([&](int i, const TensorArgument& argument) { bind_element(call, i, argument); });
    for_each_there([&](int i, const TensorArgument& argument) {
      const TensorInfo& tensor = lists.of(i)[lists.place];
      if (argument.is_flat)
        check_expressions(call, argument, Flattened(tensor));
      else
        check_expressions(call, argument, tensor);
    });
  }

  lists.views = std::make_unique_for_overwrite<std::int64_t[]>(num_words);
  std::int64_t* view = lists.views.get();
  for_each([&](int i, PyObject*) {
    call.bound[i] = {view, &lists.sizes[i]};
    for (const TensorInfo& tensor : lists.of(i)) {
      *view++ = reinterpret_cast<std::intptr_t>(address_of(tensor));
      if (family_.tensors[i].is_flat) {
        *view++ = 1;
        *view++ = tensor.numel();
        continue;
      }
      for (const std::int64_t* numbers : {tensor.strides, tensor.shape}) {
        view = std::copy_n(numbers, tensor.rank, view);
        if (tensor.rank == 0) *view++ = 0;
      }
    }
  });
}

void Kernel::check_gradients_of_list(const Call& call, int index) const {
  int place = 0;
  for (const TensorInfo& tensor : call.lists->of(index))
    as_element(family_.tensors[index], place++,
               [&](const TensorArgument& argument) { check_gradient(call, argument, tensor); });
}

void Kernel::check_apart_from_lists(const Call& call, const TensorArgument& argument,
                                    int index) const {
  for (int n = 0; n < num_inputs_; ++n) {
    const int i = inputs_[n];
    if (!family_.tensors[i].is_list) continue;
    int place = 0;
    for (const TensorInfo& tensor : call.lists->of(i)) {
      if (may_overlap(call.tensors[index], size_in_bytes(dtypes_[index]), tensor,
                      size_in_bytes(dtypes_[i])))
        throw InvalidArgument(text(argument.name, ": shares memory with ", family_.tensors[i].name,
                                   "[", place, "] (or cannot be shown not to), expected memory of ",
                                   "its own"));
      ++place;
    }
  }
}

// Checks that the inputs which the kernel changes have no memory in common with another one, if
// one of the two is in a list. In the order of their addresses, since there may be thousands.
void Kernel::check_lists_apart(const Call& call) const {
  std::vector<Memory> all;
  const auto add = [&](int index, int place, const TensorInfo& tensor) {
    if (tensor.numel() == 0) return;
    const auto [begin, end] = range_of(tensor, size_in_bytes(dtypes_[index]));
    all.push_back({begin, end, &tensor, index, place});
  };
  for (int n = 0; n < num_inputs_; ++n) {
    const int i = inputs_[n];
    if (!family_.tensors[i].is_list) {
      if (call.present[i]) add(i, -1, call.tensors[i]);
      continue;
    }
    int place = 0;
    for (const TensorInfo& tensor : call.lists->of(i)) add(i, place++, tensor);
  }
  std::ranges::sort(all, {}, &Memory::begin);
  const auto name = [&](const Memory& memory) {
    const char* const argument = family_.tensors[memory.index].name;
    return memory.place < 0 ? std::string(argument) : text(argument, "[", memory.place, "]");
  };
  const auto is_written = [&](const Memory& memory) {
    return family_.tensors[memory.index].mutated;
  };
  std::vector<const Memory*> open;  // tensors whose ends were not passed yet
  for (const Memory& memory : all) {
    std::erase_if(open, [&](const Memory* other) { return other->end <= memory.begin; });
    for (const Memory* other : open) {
      if (!is_written(memory) && !is_written(*other)) continue;
      if (!may_overlap(*memory.tensor, size_in_bytes(dtypes_[memory.index]), *other->tensor,
                       size_in_bytes(dtypes_[other->index])))
        continue;
      const bool is_first = is_written(memory);
      throw InvalidArgument(text(name(is_first ? memory : *other), ": shares memory with ",
                                 name(is_first ? *other : memory),
                                 " (or cannot be shown not to), expected memory of its own"));
    }
    open.push_back(&memory);
  }
}

}  // namespace kernelmint

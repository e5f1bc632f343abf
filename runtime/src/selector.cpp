#include "selector.h"

#include <algorithm>
#include <bit>

#include "kernel_call.h"

namespace kernelmint {
namespace {

constexpr std::size_t kMostKept = 4096;  // calls with different properties

enum class Kind : std::int64_t { none, boolean, integer, number, dtype, text };

std::vector<int> numbers(nb::handle list) {
  std::vector<int> result;
  for (nb::handle item : nb::borrow<nb::sequence>(list)) result.push_back(nb::cast<int>(item));
  return result;
}

bool is_aligned(const TensorInfo& tensor, int bytes) {
  const std::int64_t size = size_in_bytes(static_cast<Dtype>(tensor.dtype));
  auto bits = static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(tensor.data));
  for (int i = 0; i < tensor.rank; ++i)
    if (tensor.shape[i] > 1 && tensor.strides[i] != 1) bits |= size * tensor.strides[i];
  return bits % bytes == 0;
}

}  // namespace

bool Selector::Key::operator==(const Key& other) const {
  return size == other.size &&
         std::equal(values.begin(), values.begin() + size, other.values.begin());
}

std::size_t Selector::Hash::operator()(const Key& key) const {
  std::uint64_t hash = 0x9e3779b97f4a7c15;
  for (int i = 0; i < key.size; ++i) {
    hash = (hash ^ static_cast<std::uint64_t>(key.values[i])) * 0xff51afd7ed558ccd;
    hash ^= hash >> 32;
  }
  return hash;
}

const Selector::Watched& Selector::watch() {
  const nb::object found = watched_();
  auto watched = std::make_unique<Watched>();
  int size = 2;
  for (nb::handle item : nb::borrow<nb::sequence>(found[0])) {
    Input input{.tensor = nb::cast<int>(item[0]),
                .rank = nb::cast<int>(item[1]),
                .is_optional = nb::cast<bool>(item[2]),
                .is_on_host = nb::cast<bool>(item[3]),
                .has_dtype = nb::cast<bool>(item[4]),
                .is_list = nb::cast<bool>(item[9]),
                .dims = numbers(item[5]),
                .strides = numbers(item[6]),
                .alignments = numbers(item[7]),
                .expanded = numbers(item[8])};
    size += 1 + static_cast<int>(input.dims.size() + input.strides.size() +
                                 input.alignments.size() + input.expanded.size());
    watched->inputs.push_back(std::move(input));
  }
  watched->scalars = numbers(found[1]);
  watched->requested = numbers(found[2]);
  if (size + static_cast<int>(2 * watched->scalars.size() + watched->requested.size()) >
      Key::kMost / 2)
    throw nb::value_error("a choice depends on more values than a selector compares");
  for (const auto& [tensor, order] : nb::borrow<nb::dict>(found[3])) {
    DimensionOrder& known = watched->orders[nb::cast<int>(tensor)];
    const std::vector<int> dims = numbers(order[0]);
    known.rank = static_cast<int>(dims.size());
    known.kernel_rank = nb::cast<int>(order[1]);
    std::copy(dims.begin(), dims.end(), known.dims);
  }
  const nb::ft_lock_guard lock(mutex_);
  watching_ = watched.get();
  all_watched_.push_back(std::move(watched));
  return *all_watched_.back();
}

void Selector::forget() {
  decltype(kept_) dropped;  // kernels are dropped without the lock
  const nb::ft_lock_guard lock(mutex_);
  watching_ = nullptr;
  dropped.swap(kept_);
}

// Returns whether the inputs are plain tensors; `key` gets the properties that count.
bool Selector::read(const Watched& watched, Kernel::Call& call, Key& key, nb::handle inputs) {
  bool has_device = false;
  for (std::size_t n = 0; n < watched.inputs.size(); ++n) {
    const Input& input = watched.inputs[n];
    PyObject* const object = NB_TUPLE_GET_ITEM(inputs.ptr(), n);
    if (object == Py_None) {
      if (!input.is_optional) return false;
      key.add(-1);
      continue;
    }
    if (input.is_list) {
      if (!read_list(call, input, key, object, has_device)) return false;
      continue;
    }
    if (!call.torch.is_plain(object)) return false;
    TensorInfo& tensor = call.tensors[input.tensor];
    try {
      call.torch.read(object, "", tensor);
    } catch (const InvalidArgument&) {
      return false;
    }
    if (call.orders != nullptr && !call.orders[input.tensor].apply(tensor)) return false;
    if (tensor.rank != input.rank || tensor.dtype == kUnknownDtype) return false;
    if (!has_device && !input.is_on_host) {
      has_device = true;
      key.add(tensor.device.type);
      key.add(tensor.device.id);
    }
    key.add(input.has_dtype ? tensor.dtype : 0);
    for (const int dim : input.dims) key.add(tensor.shape[dim]);
    for (const int dim : input.strides) key.add(tensor.strides[dim]);
    for (const int bytes : input.alignments) key.add(is_aligned(tensor, bytes));
    for (const int dim : input.expanded) key.add(tensor.strides[dim] == 0 && tensor.shape[dim] > 1);
  }
  call.are_inputs_read = true;
  return has_device;
}

// Reads the first tensor of a list; the kernel checks the others.
bool Selector::read_list(Kernel::Call& call, const Input& input, Key& key, PyObject* list,
                         bool& has_device) {
  const bool is_tuple = PyTuple_Check(list);
  if (!is_tuple && !PyList_Check(list)) return false;
  const Py_ssize_t size = is_tuple ? PyTuple_Size(list) : PyList_Size(list);
  for (std::size_t i = 0; i < input.dims.size(); ++i) key.add(size);
  if (size == 0) return has_device && !input.has_dtype;
  const nb::object first = item_of(list, 0);
  if (!call.torch.is_plain(first.ptr())) return false;
  TensorInfo tensor;
  try {
    call.torch.read(first.ptr(), "", tensor);
  } catch (const InvalidArgument&) {
    return false;
  }
  if (tensor.dtype == kUnknownDtype) return false;
  if (!has_device) {
    key.add(tensor.device.type);
    key.add(tensor.device.id);
  }
  has_device = true;
  key.add(input.has_dtype ? tensor.dtype : 0);
  return true;
}

// Adds `value` to the key. Returns false if a key cannot hold it.
bool Selector::add(Key& key, PyObject* value) {
  if (key.size + 2 > Key::kMost) return false;
  const auto put = [&](Kind kind, std::int64_t content) {
    key.add(static_cast<std::int64_t>(kind));
    key.add(content);
    return true;
  };
  if (value == Py_None) return put(Kind::none, 0);
  if (PyBool_Check(value)) return put(Kind::boolean, value == Py_True);
  if (PyLong_CheckExact(value)) {
    int overflow = 0;
    const long long number = PyLong_AsLongLongAndOverflow(value, &overflow);
    return overflow == 0 && put(Kind::integer, number);
  }
  if (PyFloat_CheckExact(value))
    return put(Kind::number, std::bit_cast<std::int64_t>(PyFloat_AsDouble(value)));
  if (const int dtype = Torch::get().dtype_of(value); dtype != kUnknownDtype)
    return put(Kind::dtype, dtype);
  if (!PyUnicode_CheckExact(value)) return false;
  // The first of equal texts is kept, and its address stands for the text.
  const nb::ft_lock_guard lock(mutex_);
  PyObject* first = PyDict_GetItemWithError(texts_.ptr(), value);
  if (first == nullptr) {
    if (texts_.size() >= kMostKept) return false;
    if (PyDict_SetItem(texts_.ptr(), value, value) != 0) throw nb::python_error();
    first = value;
  }
  return put(Kind::text, std::bit_cast<std::int64_t>(first));
}

Selector::Found Selector::keep(const Watched& watched, const Key& key, nb::object kernel) {
  const nb::object native = nb::getattr(kernel, "_native", nb::none());
  const Found found{std::move(kernel), native.is_none() ? nullptr : nb::cast<Kernel*>(native)};
  decltype(kept_) dropped;  // kernels are dropped without the lock
  const nb::ft_lock_guard lock(mutex_);
  if (kept_.size() >= kMostKept) dropped.swap(kept_);
  if (watching_ == &watched) kept_.try_emplace(key, found);  // else packs changed in the meantime
  return found;
}

nb::object Selector::call(nb::tuple inputs, nb::tuple scalars, nb::tuple requested, nb::object out,
                          nb::tuple flags, bool permuted) {
  const auto otherwise = [&] {
    return otherwise_(inputs, scalars, requested, out, flags, permuted);
  };
  if (Torch::get().is_intercepted()) return otherwise();
  const Watched* const known = watching_;
  const Watched& watched = known != nullptr ? *known : watch();
  Kernel::Call call;
  if (permuted) call.orders = watched.orders;
  Key key;
  if (inputs.size() != watched.inputs.size() || !read(watched, call, key, inputs))
    return otherwise();
  key.add(permuted);
  const auto has = [](const nb::tuple& tuple, int i) { return i < static_cast<int>(tuple.size()); };
  for (const int i : watched.scalars)
    if (!has(scalars, i) || !add(key, NB_TUPLE_GET_ITEM(scalars.ptr(), i))) return otherwise();
  for (const int i : watched.requested) {
    if (!has(requested, i)) return otherwise();
    key.add(NB_TUPLE_GET_ITEM(requested.ptr(), i) == Py_True);
  }
  for (std::size_t i = 0; i < flags.size(); ++i)
    if (!add(key, NB_TUPLE_GET_ITEM(flags.ptr(), i))) return otherwise();
  Found found;  // a copy, since forget() may run meanwhile
  {
    const nb::ft_lock_guard lock(mutex_);
    if (const auto at = kept_.find(key); at != kept_.end()) found = at->second;
  }
  if (!found.object.is_valid())
    found = keep(watched, key, find_(inputs, scalars, requested, flags, permuted));
  if (found.kernel == nullptr)
    return found.object(inputs, scalars, requested, out, flags, permuted);
  try {
    return found.kernel->perform(call, found.kernel->values_of(inputs, scalars, requested, out));
  } catch (const ThroughOperator&) {
    return otherwise();
  } catch (const InvalidArgument&) {
    // The message describes the arguments as the kernel takes them.
    if (!permuted || call.is_launched) throw;
    return otherwise();
  }
}

}  // namespace kernelmint

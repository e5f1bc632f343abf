// The map from a call's properties to the kernel that was chosen for such calls.
#pragma once

#include <nanobind/nanobind.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "kernel.h"

namespace kernelmint {

// The chosen kernels of one family, kept by the properties of a call that a choice depends on: the
// device, dtypes, extents, scalars and flags. In place of a kernel, a function may take the calls.
class Selector {
 public:
  // The functions:
  // - watched(), called at the first call and at the first call after forget(), returns the
  //   properties that a choice depends on: a list of inputs, the indices of scalars, the indices of
  //   optional outputs, and the other layout. An input is (index among the family's tensors, rank,
  //   is optional, is on the host, whether its dtype counts, dimensions whose extents count,
  //   dimensions whose strides count, alignments in bytes, expanded dimensions, is a list, whose
  //   length is its one extent). For an alignment
  //   counts whether the address and all strides but those of 1 are multiples; for an expanded
  //   dimension, whether its elements, more than one, lie at one address. The other layout is
  //   {index of a tensor: (order, rank)}: the caller's dimension i is the kernel's dimension
  //   order[i] of `rank`;
  // - find(inputs, scalars, requested, flags, permuted) returns the kernel for new properties, or
  //   a function that takes such calls, with the arguments of call();
  // - otherwise(...) takes the arguments of call() and runs calls that are not plain: the tensors
  //   are not plain, something records the call, or arguments are wrong.
  Selector(nb::object watched, nb::object find, nb::object otherwise)
      : watched_(std::move(watched)), find_(std::move(find)), otherwise_(std::move(otherwise)) {}

  // Calls the kernel for these arguments, which are NativeKernel's, and `flags` (None, bools, ints,
  // texts and dtypes), all of which count. `permuted`: whether tensors are in the other layout.
  nb::object call(nb::tuple inputs, nb::tuple scalars, nb::tuple requested, nb::object out,
                  nb::tuple flags, bool permuted);

  // Forgets everything: packs have changed.
  void forget();

 private:
  struct Input {
    int tensor, rank;
    bool is_optional, is_on_host, has_dtype, is_list;
    std::vector<int> dims, strides, alignments, expanded;
  };
  struct Key {
    static constexpr int kMost = 96;
    std::array<std::int64_t, kMost> values;
    int size = 0;

    void add(std::int64_t value) { values[size++] = value; }
    bool operator==(const Key& other) const;
  };
  struct Hash {
    std::size_t operator()(const Key& key) const;
  };
  struct Found {
    nb::object object;
    Kernel* kernel = nullptr;  // null: `object` is a function
  };
  struct Watched {
    std::vector<Input> inputs;
    std::vector<int> scalars, requested;
    DimensionOrder orders[kMaxTensors];
  };

  const Watched& watch();
  static bool read(const Watched& watched, Kernel::Call& call, Key& key, nb::handle inputs);
  static bool read_list(Kernel::Call& call, const Input& input, Key& key, PyObject* list,
                        bool& has_device);
  bool add(Key& key, PyObject* value);
  Found keep(const Watched& watched, const Key& key, nb::object kernel);

  nb::object watched_, find_, otherwise_;
  std::atomic<const Watched*> watching_ = nullptr;  // null: forgotten
  nb::ft_mutex mutex_;                              // guards what follows
  std::vector<std::unique_ptr<const Watched>>
      all_watched_;  // calls of other threads read older ones
  nb::dict texts_;
  std::unordered_map<Key, Found, Hash> kept_;
};

}  // namespace kernelmint

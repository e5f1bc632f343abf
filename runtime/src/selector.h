// The way from a call's properties to the kernel that was chosen for such calls.
#pragma once

#include <nanobind/nanobind.h>

#include <array>
#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "kernel.h"

namespace kernelmint {

// The properties of a call of one family that its kernel depends on: the device, dtypes, extents,
// scalars and flags. Each distinct answer is a key, under which the chosen kernel is kept.
class Selector {
 public:
  // The functions are called
  // - watched(): when calls begin, or begin again after forget(): what a choice depends on, as a
  //   list of inputs, the indices of scalars, those of optional outputs, and the other layout. An
  //   input is (index among the family's tensors, rank, is optional, is on the host, whether its
  //   dtype counts, the dimensions whose extents count, those whose strides do, the bytes of which
  //   counts whether its address and its strides, but those of 1, are multiples, the dimensions of
  //   which counts whether their elements are one in memory, and more than one). The other layout
  //   names tensors: {index: (order, rank)}, where dimension i of what is passed is the kernel's
  //   dimension order[i], of as many as `rank`;
  // - find(inputs, scalars, requested, flags, permuted): the kernel for what was not seen before;
  // - otherwise(...), with the arguments of call(): what is not a plain call: the tensors are not
  //   plain, something records the call, or arguments are wrong.
  Selector(nb::object watched, nb::object find, nb::object otherwise)
      : watched_(std::move(watched)), find_(std::move(find)), otherwise_(std::move(otherwise)) {}

  // Calls the kernel for these arguments, which are NativeKernel's, and `flags`, which count as a
  // whole: None, bools, ints, texts and dtypes. `permuted` says that tensors are in the other
  // layout.
  nb::object call(nb::tuple inputs, nb::tuple scalars, nb::tuple requested, nb::object out,
                  nb::tuple flags, bool permuted);

  // Forgets all kernels: packs have changed.
  void forget();

 private:
  struct Input {
    int tensor, rank;
    bool is_optional, is_on_host, has_dtype;
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
    Kernel* kernel;
  };

  void watch();
  bool read(Kernel::Call& call, Key& key, nb::handle inputs) const;
  bool add(Key& key, PyObject* value);
  Found keep(const Key& key, nb::object kernel);

  nb::object watched_, find_, otherwise_;
  bool is_watching_ = false;
  std::vector<Input> inputs_;
  std::vector<int> scalars_, requested_;
  DimensionOrder orders_[kMaxTensors];
  nb::dict texts_;
  std::unordered_map<Key, Found, Hash> kept_;
};

}  // namespace kernelmint

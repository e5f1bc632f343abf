// The tables that generated code fills and the runtime reads: a family's arguments, and its
// kernels. Plain data and function pointers; no allocation, no static constructors, and no
// exception leaves a function: a pack's library and the runtime that loads it are built apart.
// Whoever changes a type of this header or of launch.h raises kAbi (library.h).
#pragma once

#include <cstddef>
#include <cstdint>

#include "dtype_list.h"
#include "launch.h"

namespace kernelmint {

#define KERNELMINT_ENUMERATOR(name, ...) name,
enum class Dtype : std::uint8_t { KERNELMINT_DTYPES(KERNELMINT_ENUMERATOR) };
#undef KERNELMINT_ENUMERATOR
#define KERNELMINT_ONE(...) +1
inline constexpr int kNumDtypes = KERNELMINT_DTYPES(KERNELMINT_ONE);
#undef KERNELMINT_ONE

enum class Role : std::uint8_t { input, output };

// The strides that a tensor may have: any, but 1 in the last dimension; the strides of a contiguous
// tensor; any.
enum class Strides : std::uint8_t { rows, contiguous, any };

inline constexpr int kMaxRank = 8;
inline constexpr int kMaxSymbols = 32;
inline constexpr int kMaxTensors = 32;
inline constexpr int kMaxScalars = 32;
inline constexpr int kMaxWorkspaces = 32;
inline constexpr int kMaxArgsBytes = 2048;

union ScalarValue {
  double floating;
  std::int64_t integer;  // booleans too: 0 or 1
};

struct BoundTensor {
  void* data;  // null, with strides of 0: an optional tensor that is not there
  const std::int64_t* strides;
  // A list's `data` are its ListedTensors (tensor_list.h); strides[0] is their number.
};

// The values that an expression may name: the bound symbols (in the order of FamilyEntry::symbols),
// the kernel's parameters (of KernelEntry::parameters), the scalars once their defaults are
// computed, and, of an entry that `asks_device`, facts about the call's device.
struct Scope {
  const std::int64_t* symbols;
  const std::int64_t* parameters;
  const ScalarValue* scalars;
  const DeviceFacts* device;
  // For each optional tensor (others: unset), true if it was passed, or is an output asked for.
  const bool* present = nullptr;
  const BoundTensor* tensors = nullptr;  // in the spec's order; only inputs are known
};

// The value of an expression, or why it has none: a text that is valid until the thread's next one.
template <class Value>
struct Evaluated {
  Value value;
  const char* error;
};

using IntExpression = Evaluated<std::int64_t> (*)(const Scope& scope);
using FloatExpression = Evaluated<double> (*)(const Scope& scope);

struct Dim {
  std::int16_t symbol = -1;  // index of the symbol this extent binds or must equal; -1: `value`
  IntExpression value = nullptr;  // the extent's required value, if it is an expression
  const char* text;               // the expression in the spec: "Sq", "ceil_div(T, block)"
};

// The value of every element of an output or a workspace before the kernel runs, if one is set.
struct Filling {
  bool is_set = false;
  double value = 0;
};

struct TensorArgument {
  const char* name;
  Role role;
  // An input that may be None, or an output the caller must ask for (return_<name>=True).
  bool optional = false;
  // Index into the kernel's parameters (a Dtype's number); -1: `dtype`.
  std::int16_t dtype_parameter = -1;
  Dtype dtype = {};
  std::int8_t rank;
  Dim dims[kMaxRank];
  bool mutated = false;  // an input that kernels change
  bool on_host = false;  // an input in the CPU's memory, whatever the target
  Strides strides = Strides::rows;
  IntExpression alignment = nullptr;  // bytes, of the kernel's parameters; null: the target's
  Filling fill = {};                  // an output's
  // An input that is a list of tensors. `dims` are each one's, and bind the family's element
  // symbols anew for the tensors at each place of its lists.
  bool is_list = false;
  bool is_flat = false;       // each has any shape, without gaps; the one extent is its size
  Dim length = {.text = ""};  // the list's
};

struct ScalarArgument {
  const char* name;
  // f32, f64: ScalarValue::floating; i32, i64, boolean: ScalarValue::integer. i32 of an enum.
  Dtype dtype;
  bool required = false;
  FloatExpression default_floating = nullptr;  // set for an f32 or f64 with a default
  IntExpression default_integer = nullptr;     // set for an i32, i64 or boolean with a default
  const char* text = nullptr;  // the default as the spec writes it; null if required
  // An enum's texts, which Python passes; ScalarValue::integer is the place of one.
  const char* const* values = nullptr;
  int num_values = 0;
  // A list of so many numbers, each of which has a place of its own in Scope::scalars; 0: a number.
  int length = 0;
};

// A precondition on the bound shapes and on scalars, checked at each call.
struct Requirement {
  IntExpression holds;
  const char* text;     // "H % Hk == 0"
  const char* because;  // the spec's reason
  bool needs_scalars = false;
};

// Scratch memory of a call.
struct WorkspaceEntry {
  const char* name;
  std::int16_t dtype_parameter = -1;  // the parameter that gives the dtype, or -1
  Dtype dtype = {};
  IntExpression elements;  // 0: the call needs none
  const char* text;        // the spec's words for the shape and the contents
  Filling fill = {};
};

// Writes the pointers, in the order of the entries, into the target's Args.
using BindWorkspace = void (*)(void* args, void* const* parts);

// Writes where a traced kernel's records go, and the strides of their grid counted in records, into
// its Args. `records` is null if the caller asks for no trace.
using BindTrace = void (*)(void* args, void* records, const std::int64_t* strides);

// The records that a family's traced kernels write on request.
struct TraceEntry {
  std::int16_t parameter;  // index of the bool parameter that says whether a kernel is traced
  TensorArgument records;  // the grid's extents, and last how many floats a record has
};

// Writes the family's Args, in place, from bound tensors (spec order), symbols and scalars. A
// symbol that only absent tensors name is 0.
using FillArgs = void (*)(void* args, const BoundTensor* tensors, const std::int64_t* symbols,
                          const ScalarValue* scalars);

struct KernelEntry {
  const char* key;
  const std::int64_t* parameters = nullptr;  // the family's, then the target's, in spec order
  LaunchFunction cuda = nullptr;             // the kernel, if the target is a CUDA one
  // A CPU target's; null if not compiled.
  LaunchFunction baseline = nullptr, avx2 = nullptr, avx512 = nullptr, amx = nullptr;
};

struct TargetEntry {
  const char* name;  // "sm80", "sm90a", "cpu"
  int capability;    // least compute capability, 80 for 8.0; 0 for the CPU
  // Bytes, over the kernel's parameters: data pointers and every stride but the last are multiples,
  // as far as a contiguous tensor's are. Null, or less: an element's own size. A tensor whose last
  // stride is not 1, if it may be, is held only to the element's size.
  IntExpression alignment = nullptr;
  const Requirement* requirements;  // the target's own, after the family's
  int num_requirements;
  bool asks_device = false;  // a requirement or a workspace names a fact about the device
  const WorkspaceEntry* workspace;
  int num_workspaces;
  BindWorkspace bind_workspace;
  BindTrace bind_trace;  // null if no kernel is traced
  const KernelEntry* kernels;
  std::size_t num_kernels;
};

struct FamilyEntry {
  const char* name;
  const char* const* symbols;
  int num_symbols;
  const TensorArgument* tensors;
  int num_tensors;
  const ScalarArgument* scalars;
  int num_scalars;
  const Requirement* requirements;
  int num_requirements;
  bool asks_device = false;  // a requirement or a default names a fact about the device
  FillArgs fill;
  int num_element_symbols = 0;  // the last symbols: extents of lists' tensors
  const TraceEntry* trace;      // null if kernels write none
  const TargetEntry* const* targets;
  int num_targets;
};

}  // namespace kernelmint

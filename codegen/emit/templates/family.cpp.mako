#include <cmath>
#include <cstdint>
#include <type_traits>

#include "arithmetic.h"
#include "${family.name}/args.h"
#include "guarded.h"

namespace kernelmint::${family.name} {
namespace {

static_assert(std::is_trivially_copyable_v<Args> && sizeof(Args) <= kMaxArgsBytes,
              "the arguments exceed what a kernel launch can pass");

% if family.symbols:
constexpr const char* kSymbols[] = {${", ".join(literal(symbol) for symbol in family.symbols)}};

% endif
<%def name="dim_rows(dims, indent)">\
% for dim in dims:
% if dim.function is None:
${indent}{.symbol = ${dim.symbol}, .text = ${literal(dim.text)}},
% else:
${indent}{.value = ${dim.function},
${indent} .text = ${literal(dim.text)}},
% endif
% endfor
</%def>\
constexpr TensorArgument kTensors[] = {
% for tensor in tensors:
    {.name = ${literal(tensor.name)},
     .role = Role::${tensor.role},
% if tensor.optional:
     .optional = true,
% endif
% if tensor.dtype is None:
     .dtype_parameter = ${tensor.dtype_parameter},
% else:
     .dtype = ${tensor.dtype},
% endif
     .rank = ${len(tensor.dims)},
     .dims = {
${dim_rows(tensor.dims, " " * 9)}\
     }${"".join(f",\n     .{member} = {value}" for member, value in tensor.last)}},
% endfor
};
% if scalars:

% for scalar in scalars:
% if scalar.values:
${scalar.values}
% endif
% endfor
constexpr ScalarArgument kScalars[] = {
% for scalar in scalars:
    ${scalar.row},
% endfor
};
% endif
% if requirements:

constexpr Requirement kRequirements[] = {
% for requirement in requirements:
    {.holds = ${requirement.function},
     .text = ${literal(requirement.text)},
% if requirement.needs_scalars:
     .because = ${literal(requirement.because)},
     .needs_scalars = true},
% else:
     .because = ${literal(requirement.because)}},
% endif
% endfor
};
% endif
% if trace:

constexpr TraceEntry kTrace = {
    .parameter = ${trace.parameter},
    .records = {.name = "trace",
                .role = Role::output,
                .optional = true,
                .dtype = Dtype::f32,
                .rank = ${len(trace.dims)},
                .dims = {
${dim_rows(trace.dims, " " * 20)}\
                }},
};
% endif

void fill(void* out, [[maybe_unused]] const BoundTensor* tensors,
          [[maybe_unused]] const std::int64_t* symbols,
          [[maybe_unused]] const ScalarValue* scalars) {
  auto& args = *static_cast<Args*>(out);
% for i, tensor in enumerate(tensors):
  args.${tensor.name} = {tensors[${i}].data, {${", ".join(f"tensors[{i}].strides[{d}]" for d in range(len(tensor.dims)))}}};
% endfor
% for i, scalar in enumerate(scalars):
% if not scalar.of_gradient:
  args.${scalar.name} = static_cast<${scalar.cpp_type}>(scalars[${i}].${scalar.member});
% endif
% endfor
% for i, symbol in enumerate(family.symbols):
  args.${symbol} = symbols[${i}];
% endfor
}

}  // namespace

% for target in family.targets:
#if defined(KERNELMINT_TARGET_${target})
extern const TargetEntry kTarget_${target};
#endif
% endfor

namespace {
constexpr const TargetEntry* kTargets[] = {
% for target in family.targets:
#if defined(KERNELMINT_TARGET_${target})
    &kTarget_${target},
#endif
% endfor
    nullptr};
}  // namespace

extern const FamilyEntry kFamily;
const FamilyEntry kFamily = {
    .name = ${literal(family.name)},
    .symbols = ${"kSymbols" if family.symbols else "nullptr"},
    .num_symbols = ${len(family.symbols)},
    .tensors = kTensors,
    .num_tensors = ${len(tensors)},
    .scalars = ${"kScalars" if scalars else "nullptr"},
    .num_scalars = ${len(scalars)},
    .requirements = ${"kRequirements" if requirements else "nullptr"},
    .num_requirements = ${len(requirements)},
% if family.asks_device:
    .asks_device = true,
% endif
    .fill = fill,
    .trace = ${"&kTrace" if trace else "nullptr"},
    .targets = kTargets,
    .num_targets = static_cast<int>(sizeof(kTargets) / sizeof(kTargets[0])) - 1,
};

}  // namespace kernelmint::${family.name}

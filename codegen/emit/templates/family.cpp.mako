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
<%def name="dim_rows(extents, indent)">\
% for extent in extents:
% if extent.text in family.symbols:
${indent}{.symbol = ${family.symbols.index(extent.text)}, .text = ${literal(extent.text)}},
% else:
${indent}{.value = ${value(extent)},
${indent} .text = ${literal(extent.text)}},
% endif
% endfor
</%def>\
constexpr TensorArgument kTensors[] = {
% for tensor in family.tensors:
    {.name = ${literal(tensor.name)},
     .role = Role::${tensor.role.value},
% if tensor.optional:
     .optional = true,
% endif
% if tensor.dtype in parameters:
     .dtype_parameter = ${parameters.index(tensor.dtype)},
% else:
     .dtype = ${dtype_enumerator(tensor.dtype)},
% endif
     .rank = ${len(tensor.dims)},
     .dims = {
${dim_rows([dim.expression for dim in tensor.dims], " " * 9)}\
     }${"".join(f",\n     .{member} = {text}" for member, text in last_members(tensor))}},
% endfor
};
% if family.scalars:

% for scalar in family.scalars:
% if scalar.values:
${scalars.values_row(scalar)}
% endif
% endfor
constexpr ScalarArgument kScalars[] = {
% for scalar in family.scalars:
    ${scalar_row(scalar)},
% endfor
};
% endif
% if requirements:

constexpr Requirement kRequirements[] = {
% for row in requirements:
    ${row},
% endfor
};
% endif
% if family.trace:

constexpr TraceEntry kTrace = {
    .parameter = ${parameters.index(family.trace.parameter)},
    .records = {.name = "trace",
                .role = Role::output,
                .optional = true,
                .dtype = Dtype::f32,
                .rank = ${len(family.trace.grid) + 1},
                .dims = {
${dim_rows([*family.trace.grid, family.trace.floats], " " * 20)}\
                }},
};
% endif

void fill(void* out, [[maybe_unused]] const BoundTensor* tensors,
          [[maybe_unused]] const std::int64_t* symbols,
          [[maybe_unused]] const ScalarValue* scalars) {
  auto& args = *static_cast<Args*>(out);
% for i, tensor in enumerate(family.tensors):
  args.${tensor.name} = {tensors[${i}].data, {${", ".join(f"tensors[{i}].strides[{d}]" for d in range(len(tensor.dims)))}}};
% endfor
% for i, scalar in enumerate(family.scalars):
% if not scalar.of_gradient:
  args.${scalar.name} = static_cast<${scalars.cpp_type(scalar)}>(scalars[${i}].${scalars.member(scalar)});
% endif
% endfor
% for i, symbol in enumerate(family.symbols):
  args.${symbol} = symbols[${i}];
% endfor
}

}  // namespace

% for target in targets:
#if defined(KERNELMINT_TARGET_${target})
extern const TargetEntry kTarget_${target};
#endif
% endfor

namespace {
constexpr const TargetEntry* kTargets[] = {
% for target in targets:
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
    .num_tensors = ${len(family.tensors)},
    .scalars = ${"kScalars" if family.scalars else "nullptr"},
    .num_scalars = ${len(family.scalars)},
    .requirements = ${"kRequirements" if requirements else "nullptr"},
    .num_requirements = ${len(requirements)},
% if asks_device:
    .asks_device = true,
% endif
    .fill = fill,
    .trace = ${"&kTrace" if family.trace else "nullptr"},
    .targets = kTargets,
    .num_targets = static_cast<int>(sizeof(kTargets) / sizeof(kTargets[0])) - 1,
};

}  // namespace kernelmint::${family.name}

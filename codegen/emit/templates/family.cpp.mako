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

% if symbols:
constexpr const char* kSymbols[] = {${", ".join(map(literal, symbols))}};

% endif
<%def name="dim_rows(extents, indent)">\
% for extent in extents:
% if extent.text in symbols:
${indent}{.symbol = ${symbols.index(extent.text)}, .text = ${literal(extent.text)}},
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
% if tensor.length:
  args.${tensor.name} = {static_cast<decltype(args.${tensor.name}.tensors)>(tensors[${i}].data), tensors[${i}].strides[0]};
% else:
  args.${tensor.name} = {tensors[${i}].data, {${", ".join(f"tensors[{i}].strides[{d}]" for d in range(len(tensor.dims)))}}};
% endif
% endfor
% for i, scalar in zip(slots, family.scalars):
% if scalar.length and not scalar.of_gradient:
  for (int n = 0; n < ${scalar.length}; ++n)
    args.${scalar.name}[n] = static_cast<${scalars.cpp_type(scalar)}>(scalars[${i} + n].${scalars.member(scalar)});
% elif not scalar.of_gradient:
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
    .symbols = ${"kSymbols" if symbols else "nullptr"},
    .num_symbols = ${len(symbols)},
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
% if family.element_symbols:
    .num_element_symbols = ${len(family.element_symbols)},
% endif
    .trace = ${"&kTrace" if family.trace else "nullptr"},
    .targets = kTargets,
    .num_targets = static_cast<int>(sizeof(kTargets) / sizeof(kTargets[0])) - 1,
};

}  // namespace kernelmint::${family.name}

#include <cmath>
#include <cstdint>
% if target.workspace or has_traced:
#include <type_traits>
% endif

#include "arithmetic.h"
% if not target.is_cuda:
#include "cpu_isa.h"
% endif
% if target.workspace or has_traced:
#include "${args_header}"
% endif
#include "guarded.h"
% if has_traced:
#include "${family}/trace.h"
% endif

namespace kernelmint::configs::${family}::${target.name} {
% for kernel in kernels:
struct ${kernel.type_name};
% endfor
}  // namespace kernelmint::configs::${family}::${target.name}

namespace kernelmint::${family} {
namespace {

namespace configs = kernelmint::configs::${family}::${target.name};

% if target.parameters:
constexpr std::int64_t kParameters[][${len(target.parameters)}] = {
% for kernel in kernels:
    {${parameters_of(kernel)}},
% endfor
};

% endif
constexpr KernelEntry kKernels[] = {
% for i, kernel in enumerate(kernels):
    {.key = "${kernel.key}",
% if target.parameters:
     .parameters = kParameters[${i}],
% endif
% if target.is_cuda:
     .cuda = &guarded<launch<configs::${kernel.type_name}, isa::cuda>>},
% else:
     .baseline = KERNELMINT_BASELINE(configs::${kernel.type_name}),
     .avx2 = KERNELMINT_AVX2(configs::${kernel.type_name}),
     .avx512 = KERNELMINT_AVX512(configs::${kernel.type_name}),
     .amx = KERNELMINT_AMX(configs::${kernel.type_name})},
% endif
% endfor
};
% if target.workspace:

static_assert(std::is_trivially_copyable_v<${args_type}> && sizeof(${args_type}) <= kMaxArgsBytes,
              "the arguments exceed what a kernel launch can pass");

constexpr WorkspaceEntry kWorkspace[] = {
% for part in target.workspace:
    {.name = ${literal(part.name)},
% if part.dtype in target.parameter_names:
     .dtype_parameter = ${target.parameter_names.index(part.dtype)},
% else:
     .dtype = ${dtype_enumerator(part.dtype)},
% endif
     .elements = ${value(part.elements)},
% if part.fill is not None:
     .text = ${literal(part.note)},
     .fill = ${filling(part.fill)}},
% else:
     .text = ${literal(part.note)}},
% endif
% endfor
};

void bind_workspace(void* args, void* const* parts) {
  static_cast<${args_type}*>(args)->workspace = {
% for i, part in enumerate(target.workspace):
      static_cast<${pointer(part)}>(parts[${i}]),
% endfor
  };
}
% endif
% if has_traced:

static_assert(std::is_trivially_copyable_v<${traced_args_type}> &&
                  sizeof(${traced_args_type}) <= kMaxArgsBytes,
              "the arguments of a traced kernel exceed what a launch can pass");

void bind_trace(void* args, void* records, [[maybe_unused]] const std::int64_t* strides) {
  static_cast<${traced_args_type}*>(args)->trace = {records, {${", ".join(f"strides[{i}]" for i in range(trace_rank))}}};
}
% endif
% if requirements:

constexpr Requirement kTargetRequirements[] = {
% for row in requirements:
    ${row},
% endfor
};
% endif

}  // namespace

extern const TargetEntry kTarget_${target.name};
const TargetEntry kTarget_${target.name} = {
    .name = "${target.name}",
    .capability = ${target.capability},
    .alignment = ${value(target.alignment) if target.alignment else "nullptr"},
    .requirements = ${"kTargetRequirements" if requirements else "nullptr"},
    .num_requirements = ${len(requirements)},
% if asks_device:
    .asks_device = true,
% endif
    .workspace = ${"kWorkspace" if target.workspace else "nullptr"},
    .num_workspaces = ${len(target.workspace)},
    .bind_workspace = ${"bind_workspace" if target.workspace else "nullptr"},
    .bind_trace = ${"bind_trace" if has_traced else "nullptr"},
    .kernels = kKernels,
    .num_kernels = ${len(kernels)},
};

}  // namespace kernelmint::${family}

#include <cmath>
#include <cstdint>
% if workspace or has_traced:
#include <type_traits>
% endif

#include "arithmetic.h"
% if not is_cuda:
#include "cpu_isa.h"
% endif
% if workspace or has_traced:
#include "${args_header}"
% endif
#include "guarded.h"
% if has_traced:
#include "${family}/trace.h"
% endif

namespace kernelmint::configs::${family}::${target.name} {
% for row in rows:
struct ${row.type_name};
% endfor
}  // namespace kernelmint::configs::${family}::${target.name}

namespace kernelmint::${family} {
namespace {

namespace configs = kernelmint::configs::${family}::${target.name};

% if num_parameters:
constexpr std::int64_t kParameters[][${num_parameters}] = {
% for row in rows:
    {${row.parameters}},
% endfor
};

% endif
constexpr KernelEntry kKernels[] = {
% for i, row in enumerate(rows):
    {.key = "${row.key}",
% if num_parameters:
     .parameters = kParameters[${i}],
% endif
% if is_cuda:
     .cuda = &guarded<launch<configs::${row.type_name}, isa::cuda>>},
% else:
     .baseline = KERNELMINT_BASELINE(configs::${row.type_name}),
     .avx2 = KERNELMINT_AVX2(configs::${row.type_name}),
     .avx512 = KERNELMINT_AVX512(configs::${row.type_name}),
     .amx = KERNELMINT_AMX(configs::${row.type_name})},
% endif
% endfor
};
% if workspace:

static_assert(std::is_trivially_copyable_v<${args_type}> && sizeof(${args_type}) <= kMaxArgsBytes,
              "the arguments exceed what a kernel launch can pass");

constexpr WorkspaceEntry kWorkspace[] = {
% for part in workspace:
    {.name = ${literal(part.name)},
% if part.dtype is None:
     .dtype_parameter = ${part.dtype_parameter},
% else:
     .dtype = ${part.dtype},
% endif
     .elements = ${part.elements},
% if part.zeroed:
     .text = ${literal(part.note)},
     .zeroed = true},
% else:
     .text = ${literal(part.note)}},
% endif
% endfor
};

void bind_workspace(void* args, void* const* parts) {
  static_cast<${args_type}*>(args)->workspace = {
% for i, part in enumerate(workspace):
      static_cast<${part.pointer}>(parts[${i}]),
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

}  // namespace

extern const TargetEntry kTarget_${target.name};
const TargetEntry kTarget_${target.name} = {
    .name = "${target.name}",
    .capability = ${target.capability},
    .alignment = ${alignment},
    .requirements = ${"kTargetRequirements" if requirements else "nullptr"},
    .num_requirements = ${len(requirements)},
% if asks_device:
    .asks_device = true,
% endif
    .workspace = ${"kWorkspace" if workspace else "nullptr"},
    .num_workspaces = ${len(workspace)},
    .bind_workspace = ${"bind_workspace" if workspace else "nullptr"},
    .bind_trace = ${"bind_trace" if has_traced else "nullptr"},
    .kernels = kKernels,
    .num_kernels = ${len(rows)},
};

}  // namespace kernelmint::${family}

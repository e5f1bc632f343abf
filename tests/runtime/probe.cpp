// Two families for the tests of the binder, in the shape that generated code has: `probe` uses
// every kind of argument, `threads` exercises parallel_for. PROBE_FAMILY is the one of the library.
#include <algorithm>
#include <chrono>
#include <cstring>
#include <iomanip>
#include <sstream>
#include <stdexcept>
#include <thread>

#include "arithmetic.h"
#include "generated.h"
#include "guarded.h"
#include "parallel.h"
#include "registry.h"
#include "tensor_view.h"

namespace kernelmint {
namespace {

// For fill functions, which generated code gives the symbols alone.
using Symbols = const std::int64_t*;

template <std::int64_t kBytes>
constexpr IntExpression kAligned =
    &evaluated<std::int64_t, [](const Scope&) -> std::int64_t { return kBytes; }>;

// probe: z = alpha * x + count, total = the sum of each row of z; both through a workspace.
struct ProbeArgs {
  TensorView<2> x, y;
  TensorView<1> idx;
  TensorView<2> z;
  TensorView<1> total;
  float alpha;
  std::int32_t count;
  std::int64_t wide;
  bool flag;
  std::int64_t B, N, K;
  double* unused;  // null: no call needs it
  float* scratch;
};

constexpr const char* kProbeSymbols[] = {"B", "N", "K"};

constexpr TensorArgument kProbeTensors[] = {
    {"x", Role::input, false, 0, {}, 2, {{0, nullptr, "B"}, {1, nullptr, "N"}}},
    {"y",
     Role::input,
     false,
     -1,
     Dtype::f32,
     2,
     {{0, nullptr, "B"},
      {-1,
       &evaluated<std::int64_t,
                  [](const Scope& scope) -> std::int64_t {
                    return expression::ceil_div(scope.symbols[1], 4);
                  }>,
       "ceil_div(N, 4)"}}},
    {"idx", Role::input, false, -1, Dtype::i32, 1, {{2, nullptr, "K"}}},
    {"z", Role::output, false, 0, {}, 2, {{0, nullptr, "B"}, {1, nullptr, "N"}}},
    {"total", Role::output, true, -1, Dtype::f32, 1, {{0, nullptr, "B"}}},
};

constexpr ScalarArgument kProbeScalars[] = {
    {"alpha", Dtype::f32, false,
     &evaluated<double,
                [](const Scope& scope) {
                  const double factor = scope.symbols[2] == 4   ? 1e200
                                        : scope.symbols[2] == 5 ? 1e308 * double(scope.symbols[1])
                                                                : 1.0;
                  return expression::quotient(0.5 * double(scope.symbols[1]),
                                              double(scope.symbols[2] != 6)) *
                         factor;
                }>,
     nullptr, "0.5 * N / (K != 6) * (1e200 if K == 4 else 1e308 * N if K == 5 else 1)"},
    {"count", Dtype::i32, true, nullptr, nullptr, nullptr},
    {"wide", Dtype::i64, false, nullptr,
     &evaluated<std::int64_t,
                [](const Scope& scope) {
                  return expression::sum(
                      expression::product(std::int64_t{1} << 60, scope.symbols[0] == 96 ? 8 : 0),
                      scope.symbols[1]);
                }>,
     "2 ** 60 * (8 if B == 96 else 0) + N"},
    {"flag", Dtype::boolean, false, nullptr,
     &evaluated<std::int64_t, [](const Scope&) { return std::int64_t{0}; }>, "false"},
    {"short", Dtype::i32, false, nullptr,
     &evaluated<std::int64_t,
                [](const Scope& scope) {
                  return expression::product(scope.symbols[1], std::int64_t{1} << 20);
                }>,
     "N * 2 ** 20"},
};

constexpr Requirement kProbeRequirements[] = {
    {&evaluated<std::int64_t,
                [](const Scope& scope) -> std::int64_t {
                  return expression::floor_mod(scope.symbols[1], scope.parameters[1]) == 0;
                }>,
     "N % block == 0", "a block is whole"},
    {&evaluated<std::int64_t,
                [](const Scope& scope) -> std::int64_t {
                  return expression::floor_mod(scope.symbols[0], scope.symbols[2]) == 0;
                }>,
     "B % K == 0", "rows come in groups of K"},
};

void fill_probe(void* out, const BoundTensor* tensors, Symbols s, const ScalarValue* scalars) {
  auto& args = *static_cast<ProbeArgs*>(out);
  const auto set = [&](auto& view, int i) {
    view.data = tensors[i].data;
    if (view.data != nullptr) std::memcpy(view.stride, tensors[i].strides, sizeof(view.stride));
  };
  set(args.x, 0), set(args.y, 1), set(args.idx, 2);
  set(args.z, 3), set(args.total, 4);
  args.alpha = static_cast<float>(scalars[0].floating);
  args.count = static_cast<std::int32_t>(scalars[1].integer);
  args.wide = scalars[2].integer;
  args.flag = scalars[3].integer != 0;
  args.B = s[0], args.N = s[1], args.K = s[2];
}

constexpr WorkspaceEntry kProbeWorkspace[] = {
    {"unused", -1, Dtype::f64,
     &evaluated<std::int64_t, [](const Scope&) -> std::int64_t { return 0; }>, "[0]"},
    {"scratch", -1, Dtype::f32,
     &evaluated<std::int64_t,
                [](const Scope& scope) -> std::int64_t {
                  if (scope.scalars[2].integer == -8) return std::int64_t{-1};
                  return expression::floor_div(2 * scope.symbols[1],
                                               scope.scalars[2].integer == -9 ? 0 : 1);
                }>,
     "[2 * N // (0 if wide == -9 else 1)] f32: room for a row"},
};

void bind_probe_workspace(void* out, void* const* parts) {
  auto& args = *static_cast<ProbeArgs*>(out);
  args.unused = static_cast<double*>(parts[0]);
  args.scratch = static_cast<float*>(parts[1]);
}

// Other dtypes than f32 are left unwritten: only their checks are of interest.
LaunchResult launch_probe(const void* pointer, const LaunchContext& context) {
  const auto& args = *static_cast<const ProbeArgs*>(pointer);
  if (args.flag) return {"the flag asked for a failure"};
  if (args.wide == -7) throw std::runtime_error("thrown by the kernel");
  if (args.wide == -5) {  // what a static C++ library that shares symbols with PyTorch's breaks in
    std::ostringstream stream;
    stream << std::fixed << std::setprecision(3) << 2.0 / 3 << " of " << args.N;
    throw std::runtime_error(stream.str());
  }
  if (args.wide == -6) expression::product(args.B, INT64_MAX);  // as a generated grid may
  if ((args.N > 0 && args.y.data == nullptr) || context.num_threads < 1)
    return {"missing arguments"};
  if (args.unused != nullptr) return {"a workspace that no call needs"};
  float* scratch = args.scratch;
  for (std::int64_t b = 0; b < args.B; ++b) {
    const float* x = args.x.as<float>() + b * args.x.stride[0];
    float* z = args.z.as<float>() + b * args.z.stride[0];
    float total = 0;
    for (std::int64_t n = 0; n < args.N; ++n) scratch[args.N + n] = args.alpha * x[n];
    for (std::int64_t n = 0; n < args.N; ++n)
      total += z[n] = scratch[args.N + n] + static_cast<float>(args.count);
    if (args.total.data != nullptr) args.total.as<float>()[b * args.total.stride[0]] = total;
  }
  return {};
}

LaunchResult launch_nothing(const void*, const LaunchContext&) { return {}; }

constexpr std::int64_t kBlocks[][2] = {{0, 1}, {1, 1}, {2, 1}, {2, 4}, {8, 1}};
constexpr KernelEntry kProbeCpu[] = {
    {"probe.cpu.bf16-b1", kBlocks[0], nullptr, guarded<launch_nothing>, nullptr, nullptr, nullptr},
    {"probe.cpu.fp16-b1", kBlocks[1], nullptr, guarded<launch_nothing>, nullptr, nullptr, nullptr},
    {"probe.cpu.f32-b1", kBlocks[2], nullptr, guarded<launch_probe>, nullptr, nullptr, nullptr},
    {"probe.cpu.f32-b4", kBlocks[3], nullptr, guarded<launch_probe>, nullptr, nullptr, nullptr},
    {"probe.cpu.bool-b1", kBlocks[4], nullptr, guarded<launch_nothing>, nullptr, nullptr, nullptr},
};
constexpr Requirement kProbeCpuRequirements[] = {
    {&evaluated<std::int64_t,
                [](const Scope& scope) -> std::int64_t { return scope.symbols[1] <= 4096; }>,
     "N <= 4096", "a row fits the scratch memory"},
};
constexpr TargetEntry kProbeCpuTarget = {.name = "cpu",
                                         .alignment = kAligned<16>,
                                         .requirements = kProbeCpuRequirements,
                                         .num_requirements = 1,
                                         .workspace = kProbeWorkspace,
                                         .num_workspaces = 2,
                                         .bind_workspace = bind_probe_workspace,
                                         .kernels = kProbeCpu,
                                         .num_kernels = 5};

constexpr KernelEntry kProbeCuda[] = {
    {"probe.sm80.f32-b1", kBlocks[2], guarded<launch_nothing>, nullptr, nullptr, nullptr, nullptr},
    {"probe.sm999a.f32-b1", kBlocks[2], guarded<launch_nothing>, nullptr, nullptr, nullptr,
     nullptr},
};
constexpr TargetEntry kProbeSm80 = {.name = "sm80",
                                    .capability = 80,
                                    .alignment = kAligned<16>,
                                    .kernels = kProbeCuda,
                                    .num_kernels = 1};
constexpr TargetEntry kProbeSm999 = {.name = "sm999a",
                                     .capability = 999,
                                     .alignment = kAligned<16>,
                                     .kernels = kProbeCuda + 1,
                                     .num_kernels = 1};

constexpr const TargetEntry* kProbeTargets[] = {&kProbeCpuTarget, &kProbeSm80, &kProbeSm999};
constexpr FamilyEntry kProbe = {.name = "probe",
                                .symbols = kProbeSymbols,
                                .num_symbols = 3,
                                .tensors = kProbeTensors,
                                .num_tensors = 5,
                                .scalars = kProbeScalars,
                                .num_scalars = 5,
                                .requirements = kProbeRequirements,
                                .num_requirements = 2,
                                .fill = fill_probe,
                                .targets = kProbeTargets,
                                .num_targets = 3};

// threads: counts[i] += 1 for each index i, workers[i] = who did it. `mode` 1 throws at index 3, 2
// nests, 3 sleeps for a millisecond at each index.
struct ThreadsArgs {
  TensorView<1> seed, counts, workers;
  std::int64_t mode, threads, N;
};

constexpr const char* kThreadsSymbols[] = {"N"};
constexpr TensorArgument kThreadsTensors[] = {
    {"seed", Role::input, false, -1, Dtype::i64, 1, {{0, nullptr, "N"}}},
    {"counts", Role::output, false, -1, Dtype::i64, 1, {{0, nullptr, "N"}}},
    {"workers", Role::output, false, -1, Dtype::i64, 1, {{0, nullptr, "N"}}},
};
constexpr ScalarArgument kThreadsScalars[] = {
    {"mode", Dtype::i64, true, nullptr, nullptr, nullptr},
    {"threads", Dtype::i64, true, nullptr, nullptr, nullptr},
};

void fill_threads(void* out, const BoundTensor* tensors, Symbols s, const ScalarValue* scalars) {
  *static_cast<ThreadsArgs*>(out) = {{tensors[0].data, {1}}, {tensors[1].data, {1}},
                                     {tensors[2].data, {1}}, scalars[0].integer,
                                     scalars[1].integer,     s[0]};
}

LaunchResult launch_threads(const void* pointer, const LaunchContext&) {
  const auto& args = *static_cast<const ThreadsArgs*>(pointer);
  const auto* seed = args.seed.as<std::int64_t>();
  auto* counts = args.counts.as<std::int64_t>();
  auto* workers = args.workers.as<std::int64_t>();
  std::copy(seed, seed + args.N, counts);
  const int threads = static_cast<int>(args.threads);
  parallel_for(args.N, threads, [&](std::int64_t index, int worker) {
    if (args.mode == 1 && index == 3) throw std::runtime_error("index 3 threw");
    if (args.mode == 2)
      parallel_for(4, threads, [&](std::int64_t inner, int) {
        if (inner == 2) counts[index] += 1;  // one thread alone, so that none loses another's
      });
    else
      counts[index] += 1;
    if (args.mode == 3) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    workers[index] = worker;
  });
  return {};
}

constexpr KernelEntry kThreadsCpu[] = {
    {"threads.cpu.default", nullptr, nullptr, guarded<launch_threads>, nullptr, nullptr, nullptr}};
constexpr TargetEntry kThreadsTarget = {
    .name = "cpu", .alignment = kAligned<8>, .kernels = kThreadsCpu, .num_kernels = 1};
constexpr const TargetEntry* kThreadsTargets[] = {&kThreadsTarget};
constexpr FamilyEntry kThreads = {.name = "threads",
                                  .symbols = kThreadsSymbols,
                                  .num_symbols = 1,
                                  .tensors = kThreadsTensors,
                                  .num_tensors = 3,
                                  .scalars = kThreadsScalars,
                                  .num_scalars = 2,
                                  .fill = fill_threads,
                                  .targets = kThreadsTargets,
                                  .num_targets = 1};

}  // namespace

const FamilyEntry* const kFamily = &PROBE_FAMILY;
const char kGenerated[] = "generated";
const char kBuild[] = "build";

}  // namespace kernelmint

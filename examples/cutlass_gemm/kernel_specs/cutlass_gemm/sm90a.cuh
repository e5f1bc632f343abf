// CUTLASS 3's GEMM for Hopper: TMA, wgmma and warp specialisation, by its CollectiveBuilder.
#pragma once

#include <cutlass/epilogue/collective/collective_builder.hpp>
#include <cutlass/gemm/collective/collective_builder.hpp>
#include <cutlass/gemm/kernel/gemm_universal.hpp>
#include <cutlass/gemm/kernel/tile_scheduler.hpp>

#include "cuda_launch.cuh"
#include "cutlass_gemm/elements.cuh"

namespace kernelmint::cutlass_gemm {

template <class Config>
struct Sm90a {
  using Element = CutlassElement<typename Config::dtype>;
  using Row = cutlass::layout::RowMajor;
  using LayoutB = std::conditional_t<Config::trans_b, cutlass::layout::ColumnMajor, Row>;
  static constexpr int kAlignment = 8;  // elements: TMA takes multiples of 16 bytes
  using Tile =
      cute::Shape<cute::Int<Config::tile_m>, cute::Int<Config::tile_n>, cute::Int<Config::tile_k>>;
  using Cluster = cute::Shape<cute::Int<Config::cluster_m>, cute::_1, cute::_1>;
  static constexpr bool kIsPingpong = Config::schedule == Config::schedule_type::pingpong;
  using MainloopSchedule =
      std::conditional_t<kIsPingpong, cutlass::gemm::KernelTmaWarpSpecializedPingpong,
                         cutlass::gemm::KernelTmaWarpSpecializedCooperative>;
  using EpilogueSchedule = std::conditional_t<kIsPingpong, cutlass::epilogue::TmaWarpSpecialized,
                                              cutlass::epilogue::TmaWarpSpecializedCooperative>;
  using Fusion = std::conditional_t<
      Config::with_bias,
      cutlass::epilogue::fusion::LinCombPerColBias<Element, float, Element, void, float>,
      cutlass::epilogue::fusion::LinearCombination<Element, float, void, float>>;
  using Epilogue = typename cutlass::epilogue::collective::CollectiveBuilder<
      cutlass::arch::Sm90, cutlass::arch::OpClassTensorOp, Tile, Cluster,
      cutlass::epilogue::collective::EpilogueTileAuto, float, float, void, Row, kAlignment, Element,
      Row, kAlignment, EpilogueSchedule, Fusion>::CollectiveOp;
  using Mainloop = typename cutlass::gemm::collective::CollectiveBuilder<
      cutlass::arch::Sm90, cutlass::arch::OpClassTensorOp, Element, Row, kAlignment, Element,
      LayoutB, kAlignment, float, Tile, Cluster,
      cutlass::gemm::collective::StageCountAutoCarveout<static_cast<int>(
          sizeof(typename Epilogue::SharedStorage))>,
      MainloopSchedule>::CollectiveOp;
  using Scheduler = std::conditional_t<Config::stream_k, cutlass::gemm::StreamKScheduler,
                                       cutlass::gemm::PersistentScheduler>;
  using Kernel = cutlass::gemm::kernel::GemmUniversal<cute::Shape<int, int, int, int>, Mainloop,
                                                      Epilogue, Scheduler>;
  using Params = typename Kernel::Params;
};

// A kernel whose symbol names its configuration, so that reports and profilers find its key.
template <class Config>
__global__ void __launch_bounds__(Sm90a<Config>::Kernel::MaxThreadsPerBlock, 1)
    cutlass_gemm_sm90a(const __grid_constant__ typename Sm90a<Config>::Params params) {
  extern __shared__ char shared_memory[];
  typename Sm90a<Config>::Kernel()(params, shared_memory);
}

}  // namespace kernelmint::cutlass_gemm

namespace kernelmint {

template <class Config, class Isa>
LaunchResult launch(const void* pointer, const LaunchContext& context) {
  using Gemm = cutlass_gemm::Sm90a<Config>;
  using Kernel = typename Gemm::Kernel;
  using Element = typename Gemm::Element;
  const auto& args = *static_cast<const typename Config::Args*>(pointer);
  const auto problem = cutlass_gemm::problem_of<Config>(args);
  if (problem.error != nullptr) return {problem.error};
  // Strides in elements of (rows, columns, batch), the 1 of them known when compiling.
  typename Kernel::StrideA stride_a{args.a.stride[0], cute::_1{}, 0};
  typename Kernel::StrideB stride_b{};
  if constexpr (Config::trans_b)
    cute::get<0>(stride_b) = args.b.stride[0];
  else
    cute::get<1>(stride_b) = args.b.stride[0];
  typename Kernel::StrideD stride_d{args.d.stride[0], cute::_1{}, 0};
  typename Kernel::Arguments arguments{
      cutlass::gemm::GemmUniversalMode::kGemm,
      {problem.m, problem.n, problem.k, 1},
      {args.a.template as<const Element>(), stride_a, args.b.template as<const Element>(),
       stride_b},
      {{}, nullptr, stride_d, args.d.template as<Element>(), stride_d},
      {context.device, static_cast<int>(context.facts.sm_count)}};
  arguments.epilogue.thread.alpha = 1.f;
  arguments.epilogue.thread.beta = 0.f;
  if constexpr (Config::with_bias)
    arguments.epilogue.thread.bias_ptr = args.bias.template as<const Element>();
  if (!Kernel::can_implement(arguments))
    return {"CUTLASS's kernel does not take these extents and strides"};
  const DeviceScope device(context.device);  // the tensor maps are made for it
  if (device.error != nullptr) return {device.error};
  // Stream-K keeps partial sums and flags in it; the others ask for none.
  const Allocation workspace = context.allocate(Kernel::get_workspace_size(arguments));
  if (workspace.error != nullptr) return {workspace.error};
  const cutlass::Status status = Kernel::initialize_workspace(
      arguments, workspace.data, static_cast<cudaStream_t>(context.stream));
  if (status != cutlass::Status::kSuccess) return {cutlass::cutlassGetStatusString(status)};
  const auto params = Kernel::to_underlying_arguments(arguments, workspace.data);
  const dim3 grid = Kernel::get_grid_shape(params);
  return launch_cuda<&cutlass_gemm::cutlass_gemm_sm90a<Config>>(
      {.grid = {grid.x, grid.y, grid.z},
       .block = {Kernel::MaxThreadsPerBlock},
       .shared_memory = Kernel::SharedStorageSize,
       .cluster = {Config::cluster_m}},
      context, params);
}

}  // namespace kernelmint

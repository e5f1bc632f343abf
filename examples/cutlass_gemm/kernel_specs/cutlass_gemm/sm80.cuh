// CUTLASS 2's GEMM for tensor cores of compute capability 8.0: multistage cp.async.
#pragma once

#include <cutlass/gemm/device/gemm.h>

#include "cuda_launch.cuh"
#include "cutlass_gemm/elements.cuh"

namespace kernelmint::cutlass_gemm {

template <class Config>
struct Sm80 {
  using Element = CutlassElement<typename Config::dtype>;
  using Row = cutlass::layout::RowMajor;
  using LayoutB = std::conditional_t<Config::trans_b, cutlass::layout::ColumnMajor, Row>;
  // A bias is CUTLASS's C, the same row again and again.
  static constexpr auto kScale = Config::with_bias
                                     ? cutlass::epilogue::thread::ScaleType::NoBetaScaling
                                     : cutlass::epilogue::thread::ScaleType::Nothing;
  using Gemm = cutlass::gemm::device::Gemm<
      Element, Row, Element, LayoutB, Element, Row, float, cutlass::arch::OpClassTensorOp,
      cutlass::arch::Sm80, cutlass::gemm::GemmShape<Config::tile_m, Config::tile_n, Config::tile_k>,
      cutlass::gemm::GemmShape<Config::tile_m / Config::warps_m, Config::tile_n / Config::warps_n,
                               Config::tile_k>,
      cutlass::gemm::GemmShape<16, 8, 16>,
      cutlass::epilogue::thread::LinearCombination<Element, 8, float, float, kScale>,
      cutlass::gemm::threadblock::GemmIdentityThreadblockSwizzle<8>, Config::stages>;
  using Kernel = typename Gemm::GemmKernel;
  using Params = typename Kernel::Params;
  static_assert(Kernel::kThreadCount == Config::threads);
};

// A kernel whose symbol names its configuration, so that reports and profilers find its key.
template <class Config>
__global__ void __launch_bounds__(Config::threads)
    cutlass_gemm_sm80(const typename Sm80<Config>::Params params) {
  extern __shared__ __align__(16) char shared_memory[];
  using Kernel = typename Sm80<Config>::Kernel;
  Kernel()(params, *reinterpret_cast<typename Kernel::SharedStorage*>(shared_memory));
}

}  // namespace kernelmint::cutlass_gemm

namespace kernelmint {

template <class Config, class Isa>
LaunchResult launch(const void* pointer, const LaunchContext& context) {
  using Gemm = cutlass_gemm::Sm80<Config>;
  using Swizzle = typename Gemm::Gemm::ThreadblockSwizzle;
  using Element = typename Gemm::Element;
  const auto& args = *static_cast<const typename Config::Args*>(pointer);
  const auto problem = cutlass_gemm::problem_of<Config>(args);
  if (problem.error != nullptr) return {problem.error};
  const cutlass::gemm::GemmCoord extents(problem.m, problem.n, problem.k);
  const auto tiles = Swizzle::get_tiled_shape(
      extents, {Config::tile_m, Config::tile_n, Config::tile_k}, /*split_k_slices=*/1);
  // CUTLASS's types know no operand that is only read.
  auto* a = const_cast<Element*>(args.a.template as<const Element>());
  auto* b = const_cast<Element*>(args.b.template as<const Element>());
  // CUTLASS's type for C is D's, which is written.
  Element* c = const_cast<Element*>(args.bias.template as<const Element>());
  Element* d = args.d.template as<Element>();
  typename Gemm::Params params(extents, tiles, {a, static_cast<int>(args.a.stride[0])},
                               {b, static_cast<int>(args.b.stride[0])}, {c, 0},
                               {d, static_cast<int>(args.d.stride[0])});
  const dim3 grid = Swizzle::get_grid_shape(tiles);
  return launch_cuda<&cutlass_gemm::cutlass_gemm_sm80<Config>>(
      {.grid = {grid.x, grid.y, grid.z},
       .block = {Config::threads},
       .shared_memory = sizeof(typename Gemm::Kernel::SharedStorage)},
      context, params);
}

}  // namespace kernelmint

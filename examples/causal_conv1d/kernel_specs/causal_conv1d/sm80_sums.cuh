// dweight and dbias: sums in f32, into which upstream's kernels add, or which they write apart for
// each thread block if they are to be added up in one order; then the callers' tensors, made of the
// sums.
#pragma once

#include <type_traits>

#include "causal_conv1d/sm80_params.cuh"

namespace kernelmint::causal_conv1d {

// result[i], the sum of `parts` rows of `size` sums each, in one order.
template <class Config>
__global__ void add_up(const float* sums, std::int64_t parts, std::int64_t size,
                       Upstream<typename Config::weight_dtype>* result) {
  const std::int64_t i = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i >= size) return;
  float sum = 0;
  for (std::int64_t part = 0; part < parts; ++part) sum += sums[part * size + i];
  result[i] = sum;
}

// One of the two, on its way from the kernel's sums to the result.
template <class Config>
class Sums {
 public:
  using T = Upstream<typename Config::weight_dtype>;

  // `workspace` is null if the kernel adds into `result` itself, which is null if nobody asks.
  Sums(float* workspace, void* result, std::int64_t parts, std::int64_t size)
      : workspace_(workspace), result_(result), parts_(parts), size_(size) {}

  float* data() const { return workspace_ ? workspace_ : static_cast<float*>(result_); }

  // Sets the sums that atomics add up to 0.
  LaunchResult clear(const LaunchContext& context) const {
    if (Config::in_order || data() == nullptr) return {};
    const auto stream = static_cast<cudaStream_t>(context.stream);
    const cudaError_t status = cudaMemsetAsync(data(), 0, size_ * sizeof(float), stream);
    return {status == cudaSuccess ? nullptr : cudaGetErrorString(status)};
  }

  LaunchResult finish(const LaunchContext& context) const {
    if constexpr (Config::in_order || !std::is_same_v<T, float>) {
      if (workspace_ != nullptr && result_ != nullptr)
        return launch_cuda<&add_up<Config>>(
            {.grid = {ceil_div(size_, kThreads)}, .block = {kThreads}}, context, workspace_, parts_,
            size_, static_cast<T*>(result_));
    }
    return {};
  }

 private:
  static constexpr std::int64_t kThreads = 256;
  float* workspace_;
  void* result_;
  std::int64_t parts_, size_;
};

// Fills the parameters that both backward kernels have, and launches one between the steps of its
// sums.
template <auto kKernel, class Config>
LaunchResult launch_backward(const CudaLaunch& launch, const LaunchContext& context,
                             const typename Config::Args& args, std::int64_t parts,
                             ConvParamsBwd& params) {
  const Sums<Config> dweight(args.workspace.weight_sums, args.dweight.data, parts, args.D * args.W);
  const Sums<Config> dbias(args.workspace.bias_sums, args.dbias.data, parts, args.D);
  params.dout_ptr = address(args.dy);
  params.dx_ptr = args.dx.data;
  params.dweight_ptr = params.dweight_workspace_ptr = dweight.data();
  params.dbias_ptr = params.dbias_workspace_ptr = dbias.data();
  params.dweight_c_stride = params.dweight_workspace_dim_stride = params.width;
  params.dweight_width_stride = 1;
  params.deterministic = Config::in_order;
  const DeviceScope device(context.device);
  if (device.error != nullptr) return {device.error};
  for (const auto* sums : {&dweight, &dbias})
    if (const LaunchResult wrong = sums->clear(context); wrong.error != nullptr) return wrong;
  if (args.B != 0 && args.L != 0)
    if (const LaunchResult wrong = launch_cuda<kKernel>(launch, context, params);
        wrong.error != nullptr)
      return wrong;
  for (const auto* sums : {&dweight, &dbias})
    if (const LaunchResult wrong = sums->finish(context); wrong.error != nullptr) return wrong;
  return {};
}

}  // namespace kernelmint::causal_conv1d

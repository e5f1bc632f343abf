// Functions of the CUDA driver, by way of the runtime: a library that calls them so is not linked
// with the driver's, which a machine without a GPU lacks, and loads there all the same. CUDA
// Runtime API, "Driver Entry Point Access".
#pragma once

#include <cuda_runtime.h>

namespace kernelmint {

// The function `name` of type `Function`, as CUDA `version` has it (12000 is 12.0); null if the
// driver has none. A toolkit before 12.5 cannot ask for a version, and gets its own version's. Ask
// once: `static const auto encode = driver_function<…>(…);`
template <class Function>
Function* driver_function(const char* name, unsigned version) {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found;
#if CUDART_VERSION >= 12050
  const cudaError_t error =
      cudaGetDriverEntryPointByVersion(name, &function, version, cudaEnableDefault, &found);
#else
  const cudaError_t error = cudaGetDriverEntryPoint(name, &function, cudaEnableDefault, &found);
#endif
  return error == cudaSuccess ? reinterpret_cast<Function*>(function) : nullptr;
}

}  // namespace kernelmint

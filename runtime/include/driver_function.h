// Functions of the CUDA driver, by way of the runtime: a library that calls them so is not linked
// with the driver's, which a machine without a GPU lacks, and loads there all the same. CUDA
// Runtime API, "Driver Entry Point Access".
#pragma once

#include <cuda_runtime.h>

namespace kernelmint {

// The function `name` of type `Function`, as CUDA `version` has it (12000 is 12.0); null if the
// driver has none. Ask once: `static const auto encode = driver_function<…>(…);`
template <class Function>
Function* driver_function(const char* name, unsigned version) {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found;
  if (cudaGetDriverEntryPointByVersion(name, &function, version, cudaEnableDefault, &found) !=
      cudaSuccess)
    return nullptr;
  return reinterpret_cast<Function*>(function);
}

}  // namespace kernelmint

// Prints what CUDA's own calculator (cuda_occupancy.h) says, for test_occupancy.py.
// Input lines: major minor threads_per_sm smem_per_sm optin registers threads smem barriers
#include <climits>
#include <cstdio>

#include "cuda_occupancy.h"

int main() {
  int major, minor, threads_per_sm, smem_per_sm, optin, registers, threads, smem, barriers;
  while (std::scanf("%d %d %d %d %d %d %d %d %d", &major, &minor, &threads_per_sm, &smem_per_sm,
                    &optin, &registers, &threads, &smem, &barriers) == 9) {
    cudaOccDeviceProp device;
    device.computeMajor = major;
    device.computeMinor = minor;
    device.maxThreadsPerBlock = 1024;
    device.maxThreadsPerMultiprocessor = threads_per_sm;
    device.regsPerBlock = 65536;
    device.regsPerMultiprocessor = 65536;
    device.warpSize = 32;
    device.sharedMemPerBlock = 49152;
    device.sharedMemPerMultiprocessor = smem_per_sm;
    device.numSms = 100;
    device.sharedMemPerBlockOptin = optin;
    device.reservedSharedMemPerBlock = 1024;
    cudaOccFuncAttributes function;
    function.maxThreadsPerBlock = INT_MAX;
    function.numRegs = registers;
    function.sharedSizeBytes = 0;
    function.partitionedGCConfig = PARTITIONED_GC_OFF;
    function.shmemLimitConfig = FUNC_SHMEM_LIMIT_OPTIN;
    function.maxDynamicSharedSizeBytes = optin;
    function.numBlockBarriers = barriers;
    cudaOccDeviceState state;
    state.carveoutConfig = SHAREDMEM_CARVEOUT_MAX_SHARED;
    cudaOccResult result;
    const cudaOccError error = cudaOccMaxActiveBlocksPerMultiprocessor(
        &result, &device, &function, &state, threads, static_cast<size_t>(smem));
    if (error != CUDA_OCC_SUCCESS) {
      std::printf("error %d\n", static_cast<int>(error));
      continue;
    }
    std::printf("%d %u\n", result.activeBlocksPerMultiprocessor, result.limitingFactors);
  }
}

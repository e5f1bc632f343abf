#include <cstdint>
// several wgmma in flight whose accumulator is touched: ptxas serialises them
__global__ void wgmma_touch(float* o, uint64_t da, uint64_t db, int n) {
  float d[4] = {0, 0, 0, 0};
  for (int i = 0; i < n; ++i) {
    asm volatile("wgmma.fence.sync.aligned;\n" ::: "memory");
    asm volatile(
        "{\nwgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%0,%1,%2,%3}, %4, %5, 1, 1, 1, 0, "
        "0;\n}\n"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "l"(da), "l"(db));
    d[0] *= 1.5f;
    asm volatile("wgmma.commit_group.sync.aligned;\n" ::: "memory");
    asm volatile("wgmma.wait_group.sync.aligned 0;\n" ::: "memory");
  }
  for (int i = 0; i < 4; ++i) o[threadIdx.x * 4 + i] = d[i];
}
__device__ __noinline__ float other(float x) { return x * x + 1; }
__global__ void wgmma_call(float* o, uint64_t da, uint64_t db, int n) {
  float d[4] = {0, 0, 0, 0};
  for (int i = 0; i < n; ++i) {
    asm volatile("wgmma.fence.sync.aligned;\n" ::: "memory");
    asm volatile(
        "{\nwgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%0,%1,%2,%3}, %4, %5, 1, 1, 1, 0, "
        "0;\n}\n"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "l"(da), "l"(db));
    asm volatile("wgmma.commit_group.sync.aligned;\n" ::: "memory");
    o[i] = other(o[i + 1]);
    asm volatile("wgmma.wait_group.sync.aligned 0;\n" ::: "memory");
  }
  for (int i = 0; i < 4; ++i) o[threadIdx.x * 4 + i] = d[i];
}
__global__ void regs(float* o) {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 240;\n");
  o[threadIdx.x] = 1;
}

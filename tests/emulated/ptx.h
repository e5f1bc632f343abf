// What runtime/include/ptx/ has, by its names: PTX ISA, emulated. Takes the place of each of its
// files.
#pragma once

#include <algorithm>
#include <cstdint>
#include <unordered_map>

#include "dtypes.h"
#include "emulator.h"

namespace kernelmint::ptx {

inline constexpr int kPoison = 0x42;

// math.cuh, log2.cuh

inline float flushed(float x) { return std::fabs(x) < 0x1p-126f ? std::copysign(0.f, x) : x; }
inline float exp2(float x) { return flushed(std::exp2(x)); }
inline float log2(float x) { return std::log2(flushed(x)); }
inline float reciprocal(float x) { return flushed(1 / x); }
inline float clamp(float x, float most) { return std::clamp(x, -most, most); }

template <class T>
float to_float(std::uint32_t bits) {
  return static_cast<float>(std::bit_cast<T>(static_cast<std::uint16_t>(bits)));
}
template <class T>
std::uint32_t pack(float low, float high) {
  const auto bits = [](float x) { return std::uint32_t{std::bit_cast<std::uint16_t>(T(x))}; };
  return bits(low) | bits(high) << 16;
}
template <class T>
float2 unpack(std::uint32_t packed) {
  return {to_float<T>(packed), to_float<T>(packed >> 16)};
}
template <class T>
std::uint32_t multiply_add_pairs(std::uint32_t x, std::uint32_t y, std::uint32_t z) {
  const float2 a = unpack<T>(x), b = unpack<T>(y), c = unpack<T>(z);
  return pack<T>(std::fma(a.x, b.x, c.x), std::fma(a.y, b.y, c.y));
}

// special_registers.cuh, dependent_launch.cuh

inline unsigned reread_block_index() { return blockIdx.x; }
inline unsigned reread_thread_index() { return threadIdx.x; }
inline unsigned recomputed(unsigned value) { return value; }
inline void let_next_kernel_start() {}
inline void wait_for_kernel_ahead() {}

// cluster.cuh: blocks run one after the other, so there are none (cudaOccupancyMaxActiveClusters)

inline unsigned cluster_rank() { return 0; }
inline void cluster_arrive() { emulator::fail("a cluster's barrier is not emulated"); }
inline void cluster_wait() {}
inline void cluster_arrive_relaxed() {}
inline std::uint32_t cluster_address(std::uint32_t address, unsigned) { return address; }
template <class T>
void store_cluster(std::uint32_t, T) {}

// shared_memory.cuh

inline std::uint32_t shared_address(const void* pointer) { return emulator::address_of(pointer); }
inline void order_loads_after(float, std::uint32_t) {}

template <class T>
T load_shared(std::uint32_t address) {
  T value;
  std::memcpy(&value, emulator::shared(address, sizeof value), sizeof value);
  return value;
}
inline std::uint32_t load_shared_4(std::uint32_t at) { return load_shared<std::uint32_t>(at); }
inline uint2 load_shared_8(std::uint32_t at) { return load_shared<uint2>(at); }
inline uint4 load_shared_16(std::uint32_t at) { return load_shared<uint4>(at); }

template <class T>
void store_shared(std::uint32_t address, T value) {
  std::memcpy(emulator::shared(address, sizeof value), &value, sizeof value);
}

struct Fragment {
  std::uint32_t of[4];
};

// Of each of four matrices a lane gets two elements, (row, column) of which `place` says.
template <class Place>
void load_matrices(std::uint32_t (&fragment)[4], std::uint32_t address, const Place& place) {
  const auto read = [&](int lane, const auto& addresses) {
    Fragment read{};
    for (int i = 0; i < 8; ++i) {
      const auto [row, column] = place(lane, i % 2);
      const std::uint32_t first = addresses[i / 2 * 8 + row];
      emulator::shared(first, 16);
      read.of[i / 2] |= std::uint32_t{load_shared<std::uint16_t>(first + 2 * column)}
                        << 16 * (i % 2);
    }
    return read;
  };
  const auto got = emulator::by_warp<Fragment>("ldmatrix", address, read);
  std::memcpy(fragment, got.of, sizeof got);
}
inline void ldmatrix_x4(std::uint32_t (&fragment)[4], std::uint32_t address) {
  load_matrices(fragment, address,
                [](int lane, int i) { return std::pair(lane / 4, lane % 4 * 2 + i); });
}
inline void ldmatrix_x4_transposed(std::uint32_t (&fragment)[4], std::uint32_t address) {
  load_matrices(fragment, address,
                [](int lane, int i) { return std::pair(lane % 4 * 2 + i, lane / 4); });
}
inline void stmatrix_x4(std::uint32_t address, const std::uint32_t (&fragment)[4]) {
  struct Given {
    std::uint32_t address, of[4];
  };
  const Given given{address, {fragment[0], fragment[1], fragment[2], fragment[3]}};
  emulator::by_warp<int>("stmatrix", given, [](int lane, const auto& all) {
    for (int i = 0; i < 4; ++i)
      store_shared(all[8 * i + lane / 4].address + lane % 4 * 4, all[lane].of[i]);
    return 0;
  });
}

inline void stmatrix_x4_transposed(std::uint32_t address, const std::uint32_t (&fragment)[4]) {
  struct Given {
    std::uint32_t address, of[4];
  };
  const Given given{address, {fragment[0], fragment[1], fragment[2], fragment[3]}};
  emulator::by_warp<int>("stmatrix", given, [](int lane, const auto& all) {
    for (int i = 0; i < 8; ++i)
      store_shared(all[i / 2 * 8 + lane % 4 * 2 + i % 2].address + lane / 4 * 2,
                   static_cast<std::uint16_t>(all[lane].of[i / 2] >> 16 * (i % 2)));
    return 0;
  });
}

// atomic.cuh

inline unsigned load_acquire(const unsigned* counter) { return *counter; }
inline void wait_for_counter(const unsigned* counter, unsigned least) {
  while (*counter < least) emulator::wait("a counter");
}
inline void wait_alone_for_counter(const unsigned* counter, unsigned least) {
  wait_for_counter(counter, least);
}
inline void add_release(unsigned* counter, unsigned value) { *counter += value; }
inline void store_release(unsigned* counter, unsigned value) { *counter = value; }

inline int atomic_add_acquire_release(int* counter, int value) { return atomicAdd(counter, value); }

inline constexpr int kQuadLaneStep = 1, kQuadStep = 32;
inline void add_quad(float* to, const float (&x)[4]) {
  for (int i = 0; i < 4; ++i) to[i * kQuadStep] += x[i];
}
inline void store_quad(float* to, const float (&x)[4]) {
  for (int i = 0; i < 4; ++i) to[i * kQuadStep] = x[i];
}
inline void load_quad(float (&x)[4], const float* from) {
  for (int i = 0; i < 4; ++i) x[i] = from[i * kQuadStep];
}

// cp_async.cuh

inline void cp_async_16_or_zero(std::uint32_t destination, const void* source, bool valid) {
  unsigned char* const to = emulator::shared(destination, 16);
  if (valid && reinterpret_cast<std::uintptr_t>(source) % 16 != 0)
    emulator::fail("cp.async reads an address that is not aligned");
  std::memset(to, kPoison, 16);
  emulator::current->copies.open.push_back([=] {
    if (valid)
      std::memcpy(to, source, 16);
    else
      std::memset(to, 0, 16);
  });
}
inline void cp_async_16_or_zero(std::uint32_t destination, const void* source, bool valid,
                                std::uint64_t) {
  cp_async_16_or_zero(destination, source, valid);
}
inline void cp_async_16(std::uint32_t destination, const void* source) {
  cp_async_16_or_zero(destination, source, true);
}
inline void cp_async_commit_group() { emulator::current->copies.close(); }
template <int kPending>
void cp_async_wait_group() {
  emulator::finish(emulator::current->copies, kPending);
}
inline void cp_async_wait_all() {
  cp_async_commit_group();
  cp_async_wait_group<0>();
}

// mma.cuh

// Element (row, column) of a 16 x 16 left operand: of which lane's register, shifted by how much.
struct Place {
  int lane, index, shift;
};
inline Place left_place(int row, int column) {
  return {row % 8 * 4 + column % 8 / 2, row / 8 + column / 8 * 2, column % 2 * 16};
}

template <class T>
void mma_m16n8k16(float (&d)[4], const std::uint32_t (&a)[4], std::uint32_t b0, std::uint32_t b1) {
  struct Given {
    std::uint32_t a[4], b[2];
  };
  const auto multiply = [](int lane, const auto& all) {
    float4 sums{};
    float* const sum = &sums.x;
    for (int i = 0; i < 4; ++i) {
      const int row = lane / 4 + i / 2 * 8, column = lane % 4 * 2 + i % 2;
      for (int k = 0; k < 16; ++k) {
        const auto [of, index, shift] = left_place(row, k);
        sum[i] += to_float<T>(all[of].a[index] >> shift) *
                  to_float<T>(all[column * 4 + k % 8 / 2].b[k / 8] >> shift);
      }
    }
    return sums;
  };
  const Given given{{a[0], a[1], a[2], a[3]}, {b0, b1}};
  const auto sums = emulator::by_warp<float4>("mma", given, multiply);
  d[0] += sums.x, d[1] += sums.y, d[2] += sums.z, d[3] += sums.w;
}

// mbarrier.cuh

struct Barrier {
  int expected, pending, bytes;
  std::uint32_t phase;
};
inline std::unordered_map<std::uint32_t, Barrier> barriers;

inline void settle(Barrier& barrier) {
  emulator::note_progress();
  if (barrier.pending < 0) emulator::fail("more have arrived at a barrier than it expects");
  if (barrier.pending != 0 || barrier.bytes != 0) return;
  ++barrier.phase;
  barrier.pending = barrier.expected;
}
inline void mbarrier_init(std::uint32_t barrier, int arrivals) {
  emulator::shared(barrier, 8);
  barriers[barrier] = {arrivals, arrivals, 0, 0};
}
inline void fence_mbarrier_init() {}
inline void mbarrier_arrive_expecting(std::uint32_t barrier, int bytes) {
  Barrier& at = barriers.at(barrier);
  at.bytes += bytes;
  --at.pending;
  settle(at);
}
inline void mbarrier_arrive(std::uint32_t barrier) { mbarrier_arrive_expecting(barrier, 0); }
inline void mbarrier_arrive_after_copies(std::uint32_t barrier) {
  emulator::later([barrier, copies = std::move(emulator::current->copies.open)] {
    for (const emulator::Action& copy : copies) copy();
    mbarrier_arrive(barrier);
  });
  emulator::current->copies.open.clear();
}
inline void mbarrier_wait(std::uint32_t barrier, std::uint32_t parity) {
  while (barriers.at(barrier).phase % 2 == parity) emulator::wait("mbarrier", barrier);
}

// tma.cuh

enum class CachePolicy { kEvictFirst, kEvictNormal, kEvictLast };
template <CachePolicy>
std::uint64_t make_cache_policy() {
  return 0;
}
inline constexpr std::uint64_t kEvictLastPolicy = 0;
inline void prefetch_tensor_map(const CUtensorMap&) {}
inline void fence_async_shared() {}

// What stands in a CUtensorMap here. Strides in bytes.
struct TensorMap {
  char* data;
  std::int64_t extents[5], strides[5];
  int box[5], row_bytes;
};
static_assert(sizeof(TensorMap) <= sizeof(CUtensorMap));
using Coordinates = std::array<int, 5>;

// 16-byte chunk XOR row % 8, of rows of 128 bytes; or row / 2 % 4, of rows of 64.
inline std::uint32_t swizzled(std::uint32_t address, std::uint32_t row_bytes) {
  return address ^ (address >> 7 & (row_bytes / 16 - 1)) << 4;
}

// f(in shared memory, in the tensor; null outside of it) of each element of a box.
template <class F>
void for_each(const CUtensorMap& map, std::uint32_t shared, const Coordinates& first, const F& f) {
  TensorMap of;
  std::memcpy(&of, &map, sizeof of);
  int count = 1;
  for (const int extent : of.box) count *= extent;
  for (int i = 0; i < count; ++i) {
    char* element = of.data;
    int rest = i;
    for (int d = 0; d < 5; rest /= of.box[d++]) {
      const std::int64_t at = std::int64_t{first[d]} + rest % of.box[d];
      if (at < 0 || at >= of.extents[d]) element = nullptr;
      if (element != nullptr) element += at * of.strides[d];
    }
    f(emulator::shared(swizzled(shared + 2 * i, of.row_bytes), 2), element);
  }
}

inline void load(std::uint32_t destination, const CUtensorMap& map, std::uint32_t barrier,
                 const Coordinates& first) {
  int bytes = 0;
  for_each(map, destination, first, [&](unsigned char* to, char*) {
    std::memset(to, kPoison, 2);
    bytes += 2;
  });
  emulator::later([=] {
    for_each(map, destination, first, [](unsigned char* to, char* from) {
      if (from != nullptr)
        std::memcpy(to, from, 2);
      else
        std::memset(to, 0, 2);
    });
    Barrier& at = barriers.at(barrier);
    at.bytes -= bytes;
    settle(at);
  });
}
inline void tma_load_4d(std::uint32_t destination, const CUtensorMap& map, std::uint32_t barrier,
                        std::uint64_t, int c0, int c1, int c2, int c3) {
  load(destination, map, barrier, {c0, c1, c2, c3, 0});
}
inline void tma_load_5d(std::uint32_t destination, const CUtensorMap& map, std::uint32_t barrier,
                        std::uint64_t, int c0, int c1, int c2, int c3, int c4) {
  load(destination, map, barrier, {c0, c1, c2, c3, c4});
}
inline void tma_store_5d(const CUtensorMap& map, std::uint32_t source, int c0, int c1, int c2,
                         int c3, int c4) {
  emulator::current->bulk_copies.open.push_back([=] {
    for_each(map, source, {c0, c1, c2, c3, c4}, [](unsigned char* from, char* to) {
      if (to != nullptr) std::memcpy(to, from, 2);
    });
  });
}
inline void bulk_commit_group() { emulator::current->bulk_copies.close(); }
template <int kPending>
void bulk_wait_group_read() {
  emulator::finish(emulator::current->bulk_copies, kPending);
}

// bulk_copy.cuh

inline void bulk_load(std::uint32_t destination, const void* source, int bytes,
                      std::uint32_t barrier) {
  if (reinterpret_cast<std::uintptr_t>(source) % 16 != 0 || bytes % 16 != 0)
    emulator::fail("a bulk copy reads an address or a size that is not aligned");
  for (int i = 0; i < bytes; i += 16)
    std::memset(emulator::shared(destination + i, 16), kPoison, 16);
  emulator::later([=] {
    for (int i = 0; i < bytes; i += 16)
      std::memcpy(emulator::shared(destination + i, 16), static_cast<const char*>(source) + i, 16);
    Barrier& at = barriers.at(barrier);
    at.bytes -= bytes;
    settle(at);
  });
}
inline void bulk_store(float* destination, std::uint32_t source, int bytes, std::uint64_t) {
  emulator::current->bulk_copies.open.push_back([=] {
    for (int i = 0; i < bytes / 4; ++i) destination[i] = load_shared<float>(source + 4 * i);
  });
}
inline void bulk_add(float* destination, std::uint32_t source, int bytes, std::uint64_t) {
  emulator::current->bulk_copies.open.push_back([=] {
    for (int i = 0; i < bytes / 4; ++i) destination[i] += load_shared<float>(source + 4 * i);
  });
}
template <int kPending>
void bulk_wait_group() {
  bulk_wait_group_read<kPending>();
}
inline void fence_async_global() {}

// warpgroup.cuh

template <int kRegisters>
void decrease_registers() {}
template <int kRegisters>
void increase_registers() {}
inline void named_barrier_sync(int id, int threads) { emulator::arrive(id, threads, true); }
inline void named_barrier_arrive(int id, int threads) { emulator::arrive(id, threads, false); }

// wgmma.cuh, and the products that are generated for a family

template <int kRowBytes = 128>
std::uint64_t swizzled_descriptor(std::uint32_t address, std::uint32_t panel_bytes = 16) {
  return address | std::uint64_t{panel_bytes} << 32 | std::uint64_t{kRowBytes} << 56;
}
inline std::uint64_t advance(std::uint64_t descriptor, std::uint32_t bytes) {
  return descriptor + bytes;
}
inline std::uint64_t advance_wide(std::uint64_t descriptor, std::uint32_t bytes) {
  return advance(descriptor, bytes);
}
template <class T>
void pin(T&) {}
inline void wgmma_fence() {}
inline void wgmma_commit_group() { emulator::current->products.close(); }

// The `i`-th product of the first group of each thread of a warpgroup.
template <class T>
void multiply(emulator::Crew& threads, std::size_t i) {
  const auto of = [&](int thread) -> const emulator::Product& {
    return threads.fibres[thread]->products.closed.front()[i];
  };
  const auto read = [](std::uint32_t address, std::uint32_t row_bytes) {
    return to_float<T>(load_shared<std::uint16_t>(swizzled(address, row_bytes)));
  };
  const emulator::Product& product = of(0);
  static float a[64][16], b[16][256], d[64][256];
  const auto a_address = static_cast<std::uint32_t>(product.a_descriptor);
  const auto b_address = static_cast<std::uint32_t>(product.b_descriptor);
  const auto panel_bytes = static_cast<std::uint32_t>(product.b_descriptor >> 32) & 0xffffff;
  const auto a_bytes = static_cast<int>(product.a_descriptor >> 56),
             b_bytes = static_cast<int>(product.b_descriptor >> 56);
  for (int row = 0; row < 64; ++row)
    for (int k = 0; k < 16; ++k) {
      const auto [lane, index, shift] = left_place(row % 16, k);
      a[row][k] = product.a != nullptr
                      ? to_float<T>(of(row / 16 * 32 + lane).a[index] >> shift)
                      : read(a_address + (product.is_a_transposed ? k * a_bytes + row * 2
                                                                  : row * a_bytes + k * 2),
                             a_bytes);
    }
  for (int k = 0; k < 16; ++k)
    for (int column = 0; column < product.n; ++column)
      b[k][column] = read(
          b_address + (product.is_b_transposed
                           ? column * 2 / b_bytes * panel_bytes + k * b_bytes + column * 2 % b_bytes
                           : column * b_bytes + k * 2),
          b_bytes);
  for (int row = 0; row < 64; ++row) {
    std::fill_n(d[row], product.n, 0.f);
    for (int k = 0; k < 16; ++k)
      for (int column = 0; column < product.n; ++column) d[row][column] += a[row][k] * b[k][column];
  }
  for (int thread = 0; thread < 128; ++thread)
    for (int n = 0; n < product.n / 2; ++n) {
      float& to = of(thread).d[n];
      const int row = thread / 32 * 16 + thread % 32 / 4 + n / 2 % 2 * 8;
      to = (product.accumulate ? to : 0) + d[row][n / 4 * 8 + thread % 4 * 2 + n % 2];
    }
}

template <int kPending>
void wgmma_wait_group() {
  emulator::together<int>(
      emulator::warpgroups[threadIdx.x / 128], 128, "wgmma", 0, [](emulator::Crew& threads) {
        auto& groups = threads.fibres[0]->products.closed;
        while (groups.size() > kPending) {
          for (std::size_t i = 0; i < groups.front().size(); ++i)
            groups.front()[i].is_bf16 ? multiply<bf16>(threads, i) : multiply<fp16>(threads, i);
          for (emulator::Fibre* fibre : threads.fibres) fibre->products.closed.pop_front();
        }
      });
}

template <class T, int N>
struct Wgmma {
  static constexpr bool kIsBf16 = std::is_same_v<T, bf16>;

  static void shared_shared(float (&d)[N / 2], std::uint64_t a, std::uint64_t b, int accumulate) {
    request({d, N, nullptr, a, b, accumulate != 0, false, false, kIsBf16});
  }
  static void registers_shared(float (&d)[N / 2], const std::uint32_t (&a)[4], std::uint64_t b,
                               int accumulate) {
    request({d, N, a, 0, b, accumulate != 0, false, false, kIsBf16});
  }
  static void registers_transposed(float (&d)[N / 2], const std::uint32_t (&a)[4], std::uint64_t b,
                                   int accumulate) {
    request({d, N, a, 0, b, accumulate != 0, false, true, kIsBf16});
  }
  static void shared_transposed(float (&d)[N / 2], std::uint64_t a, std::uint64_t b,
                                int accumulate) {
    request({d, N, nullptr, a, b, accumulate != 0, false, true, kIsBf16});
  }
  static void transposed_shared(float (&d)[N / 2], std::uint64_t a, std::uint64_t b,
                                int accumulate) {
    request({d, N, nullptr, a, b, accumulate != 0, true, false, kIsBf16});
  }
  static void transposed_transposed(float (&d)[N / 2], std::uint64_t a, std::uint64_t b,
                                    int accumulate) {
    request({d, N, nullptr, a, b, accumulate != 0, true, true, kIsBf16});
  }

 private:
  static void request(const emulator::Product& product) {
    emulator::current->products.open.push_back(product);
  }
};

}  // namespace kernelmint::ptx

// Checks the vector code that CPU kernels stand on, and attention itself, in one program that needs
// no Python, so it also runs under an emulator. Prints "name value" lines; test_cpu_vector.py reads
// them. The argument is the step between the bit patterns tried: 1 tries every f32.
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <vector>

#include "attention/flash_forward/cpu.h"
#include "dtypes.h"
#include "generated.h"
#include "library.h"
#include "tensor_view.h"
#include "thread_pool.h"

#if defined(__x86_64__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

extern "C" const kernelmint::LibraryEntry* kernelmint_library(const kernelmint::Host* host);

namespace kernelmint {  // what a library of a pack has beside its kernels
const FamilyEntry* const kFamily = nullptr;
const char kGenerated[] = "";
const char kBuild[] = "";
}  // namespace kernelmint

namespace {

using namespace kernelmint;
using cpu::F32;
using cpu::kLanes;

struct Args {
  TensorView<4> q, k, v, o;
  TensorView<3> lse;
  float scale;
  std::int64_t B, Sq, H, D, Sk, Hk;
};

template <class T, int D, bool Causal>
struct Config {
  using Args = ::Args;
  using dtype = T;
  static constexpr int d_head = D, B_r = 64, B_c = 64;
  static constexpr bool causal = Causal;
};

// The value of a binary floating-point number of 1 + exponent + fraction bits, from its definition.
double value_of(std::uint32_t bits, int exponent_bits, int fraction_bits) {
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const int exponent = (bits >> fraction_bits) & ((1 << exponent_bits) - 1);
  const std::uint32_t fraction = bits & ((1u << fraction_bits) - 1);
  const double sign = bits >> (exponent_bits + fraction_bits) ? -1 : 1;
  if (exponent == (1 << exponent_bits) - 1) return fraction ? std::nan("") : sign * HUGE_VAL;
  if (exponent == 0) return sign * std::ldexp(fraction, 1 - bias - fraction_bits);
  return sign * std::ldexp((1u << fraction_bits) + fraction, exponent - bias - fraction_bits);
}
double value_of(fp16 x) { return value_of(x.bits, 5, 10); }
double value_of(bf16 x) { return value_of(x.bits, 8, 7); }
double value_of(float x) { return x; }

// Whether `got` is the nearest of its kind to `x`: no neighbour is nearer, and of two equally near
// ones the one with an even fraction is taken.
template <class T>
bool nearest(float x, T got) {
  if (std::isnan(x)) return std::isnan(value_of(got));
  if (std::isinf(x)) return value_of(got) == x;
  constexpr std::uint32_t kInfinity = std::is_same_v<T, fp16> ? 0x7c00 : 0x7f80;
  const auto magnitude = [&](std::uint32_t bits) {  // infinity is where the next number would be
    if (bits < kInfinity) return value_of(T{static_cast<std::uint16_t>(bits)});
    return std::ldexp(1.0, std::is_same_v<T, fp16> ? 16 : 128);
  };
  const std::uint32_t bits = got.bits & 0x7fff;
  if (bits > kInfinity || std::signbit(x) != (got.bits >> 15)) return false;
  const double wanted = std::fabs(x);
  const double error = std::fabs(magnitude(bits) - wanted);
  const auto better = [&](std::uint32_t other) {
    const double theirs = std::fabs(magnitude(other) - wanted);
    return theirs < error || (theirs == error && other % 2 == 0 && bits % 2 == 1);
  };
  return !(bits > 0 && better(bits - 1)) && !(bits < kInfinity && better(bits + 1));
}

// Vectors of 8-bit floats against the type's own conversions, which are tested against PyTorch's.
template <class T>
long wrong_float8_loads() {
  long wrong = 0;
  for (int bits = 0; bits < 256; bits += kLanes) {
    T floats[kLanes];
    for (int i = 0; i < kLanes; ++i) floats[i].bits = static_cast<std::uint8_t>(bits + i);
    const F32 loaded = cpu::load(floats);
    for (int i = 0; i < kLanes; ++i) {
      const float expected = static_cast<float>(floats[i]), got = loaded[i];
      wrong += std::memcmp(&got, &expected, sizeof got) != 0;
    }
  }
  return wrong;
}

template <class T>
long wrong_float8_stores(const float (&x)[kLanes]) {
  long wrong = 0;
  T stored[kLanes];
  cpu::store(stored, cpu::load(x));
  for (int i = 0; i < kLanes; ++i) wrong += stored[i].bits != T(x[i]).bits;
  return wrong;
}

void check_loads() {
  long wrong_fp16 = 0, wrong_bf16 = 0;
  for (std::uint32_t bits = 0; bits < 1 << 16; bits += kLanes) {
    fp16 halves[kLanes];
    bf16 bfloats[kLanes];
    for (int i = 0; i < kLanes; ++i) {
      halves[i].bits = bfloats[i].bits = static_cast<std::uint16_t>(bits + i);
    }
    const F32 from_fp16 = cpu::load(halves), from_bf16 = cpu::load(bfloats);
    const auto differ = [](float a, double b) { return std::isnan(b) ? !std::isnan(a) : a != b; };
    for (int i = 0; i < kLanes; ++i) {
      wrong_fp16 += differ(from_fp16[i], value_of(halves[i]));
      wrong_bf16 += differ(from_bf16[i], value_of(bfloats[i]));
    }
  }
  std::printf("wrong_fp16_loads %ld\nwrong_bf16_loads %ld\n", wrong_fp16, wrong_bf16);
  std::printf("wrong_float8_loads %ld\n",
              wrong_float8_loads<e4m3fn>() + wrong_float8_loads<e5m2>());
}

void check_stores_and_exp2(std::uint32_t step) {
  long wrong_fp16 = 0, wrong_bf16 = 0, wrong_float8 = 0, wrong_zeros = 0;
  double worst_ulp = 0;
  for (std::uint64_t start = 0; start < 1ull << 32; start += std::uint64_t{step} * kLanes) {
    float x[kLanes];
    for (int i = 0; i < kLanes; ++i) {
      const auto bits = static_cast<std::uint32_t>(start + std::uint64_t{step} * i);
      std::memcpy(&x[i], &bits, sizeof bits);
    }
    wrong_float8 += wrong_float8_stores<e4m3fn>(x) + wrong_float8_stores<e5m2>(x);
    const F32 v = cpu::load(x);
    fp16 halves[kLanes];
    bf16 bfloats[kLanes];
    cpu::store(halves, v);
    cpu::store(bfloats, v);
    const F32 powers = cpu::exp2(v);
    for (int i = 0; i < kLanes; ++i) {
      wrong_fp16 += !nearest(x[i], halves[i]);
      wrong_bf16 += !nearest(x[i], bfloats[i]);
      if (std::isnan(x[i])) {
        wrong_zeros += !std::isnan(powers[i]);
      } else if (x[i] < -126.5f) {
        wrong_zeros += powers[i] != 0;
      } else if (x[i] >= -126 && x[i] <= 127) {
        const double exact = std::exp2(static_cast<double>(x[i]));
        const double ulp = std::ldexp(1.0, std::ilogb(exact) - 23);
        worst_ulp = std::fmax(worst_ulp, std::fabs(powers[i] - exact) / ulp);
      }
    }
  }
  std::printf("wrong_fp16_stores %ld\nwrong_bf16_stores %ld\n", wrong_fp16, wrong_bf16);
  std::printf("wrong_float8_stores %ld\n", wrong_float8);
  std::printf("wrong_exp2_specials %ld\nexp2_ulp %.4f\n", wrong_zeros, worst_ulp);
}

template <class T>
T rounded(float x) {
  float x_everywhere[kLanes];
  for (float& element : x_everywhere) element = x;
  T result[kLanes];
  cpu::store(result, cpu::load(x_everywhere));
  return result[0];
}

// The greatest error of o, as a share of the dtype's unit roundoff, and of lse.
template <class T, int D, bool Causal>
void check_attention(const char* name, double roundoff) {
  constexpr int kShapes[][4] = {{1, 1, 2, 1}, {7, 100, 2, 2}, {100, 65, 4, 2}, {130, 200, 2, 1}};
  double worst = 0, worst_lse = 0;
  for (const auto& [seq_len_q, seq_len_k, heads, kv_heads] : kShapes) {
    std::mt19937 random(seq_len_q);
    std::normal_distribution<float> normal;
    std::vector<T> q(seq_len_q * heads * D), k(seq_len_k * kv_heads * D), v(k.size()), o(q.size());
    std::vector<float> lse(heads * seq_len_q, std::nanf(""));
    for (auto* tensor : {&q, &k, &v}) {
      for (T& element : *tensor) element = rounded<T>(normal(random));
    }
    for (T& element : o) element = rounded<T>(std::nanf(""));
    const auto view = [](std::vector<T>& of, std::int64_t count) {
      return TensorView<4>{of.data(), {0, count * D, D, 1}};
    };
    const Args args{view(q, heads),
                    view(k, kv_heads),
                    view(v, kv_heads),
                    view(o, heads),
                    {lse.data(), {0, seq_len_q, 1}},
                    0.125f,
                    1,
                    seq_len_q,
                    heads,
                    D,
                    seq_len_k,
                    kv_heads};
    const LaunchContext context{nullptr, 0, 2};
    if (launch<Config<T, D, Causal>, isa::KERNELMINT_ISA>(&args, context).error) std::abort();
    for (int head = 0; head < heads; ++head) {
      for (int i = 0; i < seq_len_q; ++i) {
        const int seen = Causal ? std::max(0, i + seq_len_k - seq_len_q + 1) : seq_len_k;
        std::vector<double> p(seen);
        double sum = 0;
        for (int j = 0; j < seen; ++j) {
          double score = 0;
          for (int d = 0; d < D; ++d) {
            score += value_of(q[(i * heads + head) * D + d]) *
                     value_of(k[(j * kv_heads + head * kv_heads / heads) * D + d]);
          }
          sum += p[j] = std::exp(0.125 * score);
        }
        for (int d = 0; d < D; ++d) {
          double exact = 0;
          for (int j = 0; j < seen; ++j) {
            exact += p[j] / sum * value_of(v[(j * kv_heads + head * kv_heads / heads) * D + d]);
          }
          const double error = std::fabs(value_of(o[(i * heads + head) * D + d]) - exact);
          worst = error <= worst ? worst : error;  // NaN stays
        }
        const double error = std::fabs(lse[head * seq_len_q + i] - std::log(sum));
        if (seen == 0 && std::isinf(lse[head * seq_len_q + i])) continue;
        worst_lse = error <= worst_lse ? worst_lse : error;
      }
    }
  }
  std::printf("attention_%s_%d_%d %.3f\nlse_%s_%d_%d %.3e\n", name, D, Causal, worst / roundoff,
              name, D, Causal, worst_lse);
}

template <class T>
void check_attention(const char* name, double roundoff) {
  check_attention<T, 64, false>(name, roundoff);
  check_attention<T, 128, true>(name, roundoff);
}

}  // namespace

int main(int, char** arguments) {
#if defined(KERNELMINT_AMX_TILES)
  constexpr long kRequestPermission = 0x1023, kTileData = 18;
  if (syscall(SYS_arch_prctl, kRequestPermission, kTileData) != 0) return 1;
#endif
  static const kernelmint::Host host = {.abi = kernelmint::kAbi,
                                        .parallel = &kernelmint::run_parallel};
  kernelmint_library(&host);
  check_loads();
  check_stores_and_exp2(static_cast<std::uint32_t>(std::strtoul(arguments[1], nullptr, 10)));
  check_attention<float>("f32", 0x1p-24);
  check_attention<fp16>("fp16", 0x1p-11);
  check_attention<bf16>("bf16", 0x1p-8);
}

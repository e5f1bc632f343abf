// A thread block of the main kernel: FlashAttention-2's backward (Dao, 2023) on mma.sync. The block
// owns a block of keys: dK and dV stay in registers while all blocks of queries that see these keys
// pass by. S and dP are made transposed, keys by queries, so that P and dS are left operands of dV
// and dK in the registers that they are made in; dS goes through shared memory for dQ, to which all
// blocks of keys add.
#pragma once

#include <cstdint>

#include "attention/dropout.cuh"
#include "attention/sm80_backward_copy.cuh"
#include "attention/sm80_backward_query_gradients.cuh"
#include "attention/sm80_backward_shared_memory.cuh"
#include "attention/sm80_tiles.cuh"
#include "ptx/atomic.cuh"
#include "ptx/cp_async.cuh"
#include "ptx/dependent_launch.cuh"
#include "ptx/math.cuh"
#include "ptx/mbarrier.cuh"
#include "ptx/shared_memory.cuh"
#include "ptx/special_registers.cuh"
#include "register_tile.cuh"
#include "tensor_view.h"

namespace kernelmint::attention_backward::sm80 {

// A step's place: the n-th block of queries of the tile, of the group's `head`-th head.
struct Position {
  int n = 0, head = 0;
};

// True if steps have a trace.
template <class Sequences>
inline constexpr bool kTraces = requires { requires Sequences::kTraces; };

// True if probabilities drop out.
template <class Sequences>
inline constexpr bool kDropsOut = requires { requires Sequences::kDropsOut; };

// `Sequences` knows all that depends on lengths and masks.
template <class Config, class Sequences>
class Backward {
  using Element = typename Config::dtype;
  using Problem = typename Sequences::Problem;
  using Shared = SharedMemory<Config, Sequences::kTileBytes>;
  using Layout = typename Shared::Layout;
  using ScoresLayout = typename Shared::ScoresLayout;
  using Queries = typename Shared::Queries;
  using Gradients = typename Shared::Gradients;
  using Parts = Shape<Config>;

  static constexpr int kSharers = Parts::kSharers;
  static constexpr int kAtOnce = Config::score_queries;
  static constexpr int kChunks = Parts::kQueries / kAtOnce;
  static_assert(kSharers == 1 || kChunks == 1, "what others share is kept until they have it");
  static constexpr int kKeyTiles = Parts::kKeys / 16;
  static constexpr int kSlices = kAtOnce / 16;  // slices of the reduction over queries
  static constexpr int kGroups = kAtOnce / 8;   // groups of queries: accumulators of S along a row
  static constexpr int kUnits = kKeyTiles * kGroups;
  static constexpr int kHeadTiles = Config::d_head / 16;
  static constexpr int kColumnTiles = Parts::kColumns / 16;

  using Scores = RegisterTile<Parts::kKeys, kAtOnce>;
  using KeyGradients = RegisterTile<Parts::kKeys, Parts::kColumns>;
  using QueryGradients = QueryGradientTile<Config>;
  using Fragments = Slice<kKeyTiles>[kSlices];  // fragments of P or dS: left operands

 public:
  __device__ Backward(const Problem& problem, std::uint32_t shared)
      : problem_(problem),
        shared_(shared),
        tile_(Sequences::tile(problem)),
        key_addresses_(shared + Shared::kKeys + first_key(warp()) * Layout::kRowBytes),
        query_addresses_(shared + Shared::kQueries + first_query(warp()) * Layout::kRowBytes),
        column_addresses_(shared + Shared::kQueries, sharer(warp()) * kColumnTiles) {
    dk_.zero();
    dv_.zero();
  }

  __device__ __forceinline__ void run() {
    if (threadIdx.x == 0) Shared::initialise_barriers(shared_);
    __syncthreads();
    if (tile_.blocks > 0) {
      request_keys(problem_.args.k, Sequences::columns(problem_), Shared::kKeys);
      request_keys(problem_.args.v, Sequences::value_columns(problem_), Shared::kValues);
      ptx::wait_for_kernel_ahead();  // the kernel ahead makes the sums of rows
      request_queries(Position{}, 0);
      request_gradients(Position{}, 0);
      ptx::cp_async_wait_all();
      __syncthreads();
    }
    Position at;
    int i = 0;
#pragma unroll 1
    for (; Sequences::has(problem_, tile_, at); ++i) at = step(i, at);
    __syncthreads();
    if constexpr (Config::deterministic)
      if (threadIdx.x == 0 && i > 0) say_added(i - 1);
    store(problem_.args.dk, Sequences::columns(problem_), dk_, Sequences::scale(problem_),
          Shared::kKeys);
    store(problem_.args.dv, Sequences::value_columns(problem_), dv_,
          attention::keep_scale_of(problem_.args), Shared::kValues);
  }

 private:
  __device__ __forceinline__ int block_of(const Position& at) const {
    return Sequences::nth_block(problem_, tile_, at.n);
  }
  __device__ __forceinline__ int head_of(const Position& at) const {
    return tile_.kv_head * problem_.group + at.head;
  }
  __device__ __forceinline__ std::int64_t index_of(const Position& at) const {
    return Sequences::block_index(problem_, tile_, head_of(at), block_of(at));
  }

  // One block of queries. Returns the next one's position.
  __device__ __forceinline__ Position step(int i, const Position& at) {
    const int q_stage = i % Config::q_stages, do_stage = i % Config::do_stages;
    const Position next = Sequences::after(problem_, tile_, at);
    const bool has_next = Sequences::has(problem_, tile_, next);
    // From the first Q in shared memory to this step's, and to its dO.
    const std::uint32_t to_queries = Queries::data(q_stage) - Shared::kQueries;
    const std::uint32_t to_gradients = Gradients::data(do_stage) - Shared::kQueries;
    const std::uint32_t rows = shared_ + first_query(warp()) * 4 + lane() % 4 * 8;
    Fragments probabilities, score_gradients;
    unroll<kChunks>([&](int chunk) {
      const int query = chunk * kAtOnce;
      if (chunk == 0) wait_until_full<Queries>(i);
      Scores scores, products;
      scores.zero();
      multiply<kHeadTiles>(scores, key_addresses_.parts(),
                           query_addresses_.parts(to_queries + query * Layout::kRowBytes),
                           [](int) {});
      if constexpr (kTraces<Sequences>)
        trace(at).scores(scores, first_key(warp()), own_rows(query));
      if constexpr (Sequences::kChangesScores) change_of_scores(at, query).apply(scores);
      if (chunk == 0) wait_until_full<Gradients>(i);
      products.zero();
      multiply<kHeadTiles>(
          products, key_addresses_.parts(Shared::kValues - Shared::kKeys),
          query_addresses_.parts(to_gradients + query * Layout::kRowBytes), [&](int slice) {
            unroll<kUnits>([&](int unit) {
              if (unit * kHeadTiles / kUnits == slice)
                exponentiate(scores, unit, rows + Queries::rows(q_stage) + query * 4);
            });
          });
      if constexpr (Sequences::kSeesFirstKeys) {
        if (const int ahead = hidden_ahead(at, query); ahead > kNone) hide(scores, ahead);
      } else {
        Sequences::template hide<Scores>(
            problem_, tile_, tile_.key_block * Config::B_c + first_key(warp()),
            block_of(at) * Config::B_r + first_query(warp()) + query, scores);
      }
      if constexpr (kTraces<Sequences>)
        trace(at).probabilities(scores, products, first_key(warp()), own_rows(query));
      if (chunk == 0) {
        if (has_next && Config::q_stages > 1) request_queries(next, i + 1);
        if (has_next && Config::do_stages > 1) request_gradients(next, i + 1);
        ptx::mbarrier_wait(shared_ + Shared::kScoresRead, i & 1 ^ 1);
      }
      if constexpr (kDropsOut<Sequences>) {
        Scores kept = scores;
        drop_out(at, query, kept, products);
        unroll<kSlices>([&](int slice) { pack(kept, slice, probabilities[slice]); });
      } else {
        unroll<kSlices>([&](int slice) { pack(scores, slice, probabilities[slice]); });
      }
      if constexpr (kSharers > 1) share(probabilities);
      // dV of the warp's own queries, and dS beside it.
      multiply_slices(dv_, probabilities,
                      column_addresses_.parts(to_gradients + own_rows(query) * Layout::kRowBytes),
                      [&](int slice) {
                        unroll<2 * kKeyTiles>([&](int unit) {
                          differentiate(scores, products, slice * 2 * kKeyTiles + unit,
                                        rows + Gradients::rows(do_stage) + query * 4);
                        });
                        if constexpr (Sequences::kChangesScores)
                          change_of_scores(at, query).differentiate(
                              scores, products, slice, rows + Queries::rows(q_stage) + query * 4);
                        pack(products, slice, score_gradients[slice]);
                        store(score_gradients[slice], query + slice * 16);
                      });
      if constexpr (kTraces<Sequences>)
        trace(at).score_gradients(products, first_key(warp()), own_rows(query));
      if (chunk == kChunks - 1) arrive(Shared::kScoresMade);
      multiply_slices(dk_, score_gradients,
                      column_addresses_.parts(to_queries + own_rows(query) * Layout::kRowBytes),
                      [](int) {});
    });
    ptx::mbarrier_wait(shared_ + Shared::kScoresMade, i & 1);
    bool has_turn = true;
    if constexpr (Config::deterministic) has_turn = pass_turns(i, at);
    unroll<kSharers - 1>([&](int other) { add_values_of(other + 1, to_gradients); });
    if constexpr (kTraces<Sequences>)
      trace(at).gradients(shared_ + Gradients::data(do_stage), shared_ + Gradients::rows(do_stage),
                          shared_ + Shared::kValues);
    arrive(Gradients::empty(do_stage));
    unroll<kSharers - 1>([&](int other) { add_keys_of(other + 1, to_queries); });
    if constexpr (kTraces<Sequences>) {
      trace(at).queries(shared_ + Queries::data(q_stage), shared_ + Queries::rows(q_stage),
                        shared_ + Shared::kKeys);
      trace(at).key_gradients(dk_, dv_, first_key(warp()), sharer(warp()) * Parts::kColumns);
    }
    arrive(Queries::empty(q_stage));
    if (has_next && Config::q_stages == 1) request_queries(next, i + 1);
    if (has_next && Config::do_stages == 1) request_gradients(next, i + 1);
    add_query_gradients(i, at, has_turn);
    return next;
  }

  __device__ __forceinline__ auto trace(const Position& at) const {
    return typename Sequences::Trace(problem_, tile_, head_of(at), block_of(at));
  }

  template <class Ring>
  __device__ __forceinline__ void wait_until_full(int i) const {
    ptx::mbarrier_wait(shared_ + Ring::full(i % Ring::kBuffers), i / Ring::kBuffers & 1);
  }
  // One lane says that its warp is done.
  __device__ __forceinline__ void arrive(std::uint32_t barrier) const {
    __syncwarp();
    if (ptx::reread_thread_index() % 32 == 0) ptx::mbarrier_arrive(shared_ + barrier);
  }

  // sum += left right, over slices of the reduction that are loaded one ahead. beside(i) is done
  // beside the products of slice i.
  template <int kCount, class Sum, class Left, class Right, class Beside>
  __device__ __forceinline__ static void multiply(Sum& sum, const Left& left, const Right& right,
                                                  const Beside& beside) {
    Slice<Sum::kRowTiles> a[2];
    Slice<Sum::kColumns / 16> b[2];
    left.load(a[0], 0);
    right.load(b[0], 0);
    unroll<kCount>([&](int i) {
      if (i + 1 < kCount) {
        left.load(a[(i + 1) % 2], i + 1);
        right.load(b[(i + 1) % 2], i + 1);
      }
      multiply_add<Element>(sum, a[i % 2], b[i % 2]);
      beside(i);
    });
  }

  // The same with the left operand in registers.
  template <class Sum, class Right, class Beside>
  __device__ __forceinline__ static void multiply_slices(Sum& sum, const Fragments& left,
                                                         const Right& right, const Beside& beside) {
    Slice<Sum::kColumns / 16> b[2];
    right.load(b[0], 0);
    unroll<kSlices>([&](int i) {
      if (i + 1 < kSlices) right.load(b[(i + 1) % 2], i + 1);
      multiply_add<Element>(sum, left[i], b[i % 2]);
      beside(i);
    });
  }

  // S becomes P: of 16 keys by 8 queries.
  __device__ __forceinline__ void exponentiate(Scores& scores, int unit,
                                               std::uint32_t log_sums) const {
    const int group = unit / kKeyTiles;
    const float2 sums = row_pair(log_sums, group);
    float (&score)[4] = scores.accumulator(unit % kKeyTiles, group);
    unroll<4>([&](int e) {
      score[e] = ptx::exp2(score[e] * Sequences::factor(problem_) - (e % 2 == 0 ? sums.x : sums.y));
    });
  }

  // dP becomes dS = P (dP - D).
  __device__ __forceinline__ static void differentiate(Scores& probabilities, Scores& products,
                                                       int unit, std::uint32_t deltas) {
    const int group = unit / kKeyTiles;
    const float2 sums = row_pair(deltas, group);
    float (&product)[4] = products.accumulator(unit % kKeyTiles, group);
    const float (&probability)[4] = probabilities.accumulator(unit % kKeyTiles, group);
    unroll<4>([&](int e) {
      product[e] = probability[e] * (product[e] - (e % 2 == 0 ? sums.x : sums.y));
    });
  }

  // The log-sum-exps, or D, of two neighbouring queries of the lane.
  __device__ __forceinline__ static float2 row_pair(std::uint32_t rows, int group) {
    const uint2 bits = ptx::load_shared_8(rows + group * 32);
    return {__uint_as_float(bits.x), __uint_as_float(bits.y)};
  }

  // The change that makes scores of the products of the warp's keys and its queries from `query`.
  __device__ __forceinline__ auto change_of_scores(const Position& at, int query) const {
    return typename Sequences::template Change<Scores>(
        problem_, tile_, head_of(at), tile_.key_block * Config::B_c + first_key(warp()),
        block_of(at) * Config::B_r + first_query(warp()) + query);
  }

  // Probabilities that are dropped, and the gradients of those, become 0.
  __device__ __forceinline__ void drop_out(const Position& at, int query, Scores& probabilities,
                                           Scores& products) const {
    const auto& args = problem_.args;
    const auto head = attention::dropout_of(args, tile_.sequence, head_of(at));
    unroll<kKeyTiles>([&](int tile) {
      std::uint32_t dropped[1];
      attention::find_dropped<kAtOnce / 2>(
          head, attention::drop_threshold(args.dropout_p),
          block_of(at) * Config::B_r + first_query(warp()) + query,
          tile_.key_block * Config::B_c + first_key(warp()) + tile * 16 + Scores::first_row(lane()),
          dropped);
      unroll<kAtOnce / 2>([&](int e) {
        if ((dropped[0] >> e & 1) == 0) return;
        probabilities.accumulator(tile, e / 4)[e % 4] = 0;
        products.accumulator(tile, e / 4)[e % 4] = 0;
      });
    });
  }

  // The distance from the last key that the lane's first query sees, from its own `query` on, to
  // the lane's first key of the warp; kNone if all these queries see all of the warp's keys.
  static constexpr int kNone = -(1 << 30);
  __device__ __forceinline__ int hidden_ahead(const Position& at, int query) const {
    const int key = tile_.key_block * Config::B_c + first_key(warp());
    const int last_seen =
        Config::causal ? block_of(at) * Config::B_r + first_query(warp()) + query + problem_.offset
                       : static_cast<int>(problem_.args.Sk) - 1;
    if (key + Parts::kKeys - 1 <= last_seen) return kNone;
    return key + Scores::first_row(lane()) - last_seen -
           (Config::causal ? Scores::first_column(lane()) : 0);
  }

  // P is 0 where a query does not see a key: one past the last, or, under the causal mask, after
  // it.
  __device__ __forceinline__ static void hide(Scores& probabilities, int ahead) {
    unroll<Scores::kLaneRows>([&](int row) {
      unroll<Scores::kLaneColumns>([&](int column) {
        const int seen = Config::causal ? Scores::column_of(column) : 0;
        if (ahead + Scores::row_of(row) > seen) probabilities(row, column) = 0;
      });
    });
  }

  __device__ __forceinline__ static void pack(const Scores& values, int slice,
                                              Slice<kKeyTiles>& fragments) {
    unroll<kKeyTiles>([&](int tile) {
      values.template pack_operand<Element>(tile, slice, fragments.tiles[tile]);
    });
  }

  // dS of 16 of the warp's queries, from its `query`-th on, goes to shared memory.
  __device__ __forceinline__ void store(const Slice<kKeyTiles>& fragments, int query) const {
    const unsigned thread = ptx::reread_thread_index();
    const int row = first_key(thread / 32) + Scores::first_row(thread % 32);
    const int chunk = (first_query(thread / 32) + query) / 8;
    unroll<kKeyTiles>([&](int tile) {
      unroll<4>([&](int i) {
        ptx::store_shared(shared_ + Shared::kScores +
                              ScoresLayout::offset(row + tile * 16 + i % 2 * 8, chunk + i / 2) +
                              2 * Scores::first_column(thread % 32),
                          fragments.tiles[tile][i]);
      });
    });
  }

  // P of the warp's queries goes to the others that share its keys.
  __device__ __forceinline__ void share(const Fragments& probabilities) const {
    const std::uint32_t to = shared_fragments(ptx::reread_thread_index() / 32);
    unroll<kSlices>([&](int slice) {
      unroll<kKeyTiles>([&](int tile) {
        const Fragment& x = probabilities[slice].tiles[tile];
        ptx::store_shared(to + (slice * kKeyTiles + tile) * 512, uint4{x[0], x[1], x[2], x[3]});
      });
    });
  }
  __device__ __forceinline__ std::uint32_t shared_fragments(unsigned warp) const {
    return shared_ + Shared::kProbabilities + warp * (kSlices * kKeyTiles * 512) +
           ptx::reread_thread_index() % 32 * 16;
  }

  // dV, of P that another warp made.
  __device__ __forceinline__ void add_values_of(int distance, std::uint32_t to_gradients) {
    const unsigned other = ptx::reread_thread_index() / 32 ^ distance;
    const std::uint32_t from = shared_fragments(other);
    multiply<kSlices>(
        dv_, SharedFragments{from},
        column_addresses_.parts(to_gradients + first_query(other) * Layout::kRowBytes), [](int) {});
  }
  struct SharedFragments {
    std::uint32_t from;
    __device__ __forceinline__ void load(Slice<kKeyTiles>& slice, int i) const {
      unroll<kKeyTiles>([&](int tile) {
        const uint4 x = ptx::load_shared_16(from + (i * kKeyTiles + tile) * 512);
        Fragment& to = slice.tiles[tile];
        to[0] = x.x, to[1] = x.y, to[2] = x.z, to[3] = x.w;
      });
    }
  };

  // dK, of dS that another warp made.
  __device__ __forceinline__ void add_keys_of(int distance, std::uint32_t to_queries) {
    const unsigned other = ptx::reread_thread_index() / 32 ^ distance;
    const FragmentAddresses<ScoresLayout, Operand::kLeft> scores(
        shared_ + Shared::kScores + first_key(other) * ScoresLayout::kRowBytes,
        first_query(other) / 16);
    multiply<kSlices>(dk_, scores.parts(),
                      column_addresses_.parts(to_queries + first_query(other) * Layout::kRowBytes),
                      [](int) {});
  }

  // A step's block of dQ, and how many blocks of keys add to it before this one.
  struct Turn {
    std::int64_t index;
    unsigned before;
  };

  // Once all warps have written dS of step `i`, and so have added dQ of the step before: one warp
  // says so, and another looks for this step's turn. Both take the time of a way to memory and
  // back, in which the other warps go on. False for a thread that has to wait for the turn.
  __device__ __forceinline__ bool pass_turns(int i, const Position& at) const {
    const int thread = static_cast<int>(ptx::reread_thread_index());
    if (i > 0 && thread == i % Config::n_warps * 32) say_added(i - 1);
    if (thread != (i + 1) % Config::n_warps * 32) return true;
    const auto index = static_cast<std::uint32_t>(index_of(at));
    const auto before =
        static_cast<std::uint32_t>(Sequences::blocks_before(problem_, tile_, block_of(at)));
    ptx::store_shared(shared_ + Shared::turn(i), index);
    ptx::store_shared(shared_ + Shared::turn(i) + 4, before);
    if (before > 0 && ptx::load_acquire(problem_.counters + index) < before) return false;
    ptx::mbarrier_arrive(shared_ + Shared::kTurn);
    return true;
  }
  // By one thread, after all warps have added dQ of step `i`.
  __device__ __forceinline__ void say_added(int i) const {
    const Turn turn = turn_of(i);
    ptx::store_release(problem_.counters + turn.index, turn.before + 1);
  }
  __device__ __forceinline__ Turn wait_for_turn(int i, bool has_turn) const {
    if (!has_turn) {
      const Turn turn = turn_of(i);
      ptx::wait_alone_for_counter(problem_.counters + turn.index, turn.before);
      ptx::mbarrier_arrive(shared_ + Shared::kTurn);
    }
    __syncwarp();
    ptx::mbarrier_wait(shared_ + Shared::kTurn, i & 1);
    return turn_of(i);
  }
  __device__ __forceinline__ Turn turn_of(int i) const {
    const uint2 words = ptx::load_shared_8(shared_ + Shared::turn(i));
    return {words.x, words.y};
  }

  // The warp's tile of dQ, over all keys of the block. All blocks of keys add to it; or, if it has
  // to be the same each time, the first one stores it, and each adds when those before have.
  __device__ __forceinline__ void add_query_gradients(int i, const Position& at, bool has_turn) {
    typename QueryGradients::Values dq;
    dq.zero();
    const unsigned thread = ptx::reread_thread_index();  // cheaper than registers for addresses
    const int warp = static_cast<int>(thread) / 32;
    const FragmentAddresses<ScoresLayout, Operand::kLeftTransposed> scores(
        shared_ + Shared::kScores, QueryGradients::first_query(warp) / 16, thread);
    const FragmentAddresses<Layout, Operand::kRightTransposed> keys(
        shared_ + Shared::kKeys, QueryGradients::first_column(warp) / 16, thread);
    multiply<Config::B_c / 16>(dq, scores.parts(), keys.parts(), [](int) {});
    if constexpr (kTraces<Sequences>)
      trace(at).query_gradients(dq, QueryGradients::first_query(warp),
                                QueryGradients::first_column(warp));
    arrive(Shared::kScoresRead);
    Turn turn;
    if constexpr (Config::deterministic)
      turn = wait_for_turn(i, has_turn);
    else
      turn.index = index_of(at);
    float* const to =
        problem_.dq + turn.index * (Config::B_r * Config::d_head) + warp * QueryGradients::kFloats;
    if (Config::deterministic && turn.before == 0)
      QueryGradients::for_each(dq, to, lane(),
                               [](float (&quad)[4], float* at) { ptx::store_quad(at, quad); });
    else
      QueryGradients::for_each(dq, to, lane(),
                               [](float (&quad)[4], float* at) { ptx::add_quad(at, quad); });
  }

  __device__ __forceinline__ void request_keys(const ConstTensorView<4>& tensor, int columns,
                                               int place) const {
    RowCopy<Config, Layout, Config::B_c>::request(
        shared_ + place,
        tensor.template at<const Element>(Sequences::key_entry(tile_), Sequences::key_row(tile_),
                                          tile_.kv_head),
        tensor.stride[1], tile_.key_block * Config::B_c,
        Sequences::used_keys(problem_, tile_, columns));
  }
  __device__ __forceinline__ void request_queries(const Position& at, int i) const {
    request_rows<Queries>(problem_.args.q, Sequences::columns(problem_), problem_.log_sums, at, i);
  }
  __device__ __forceinline__ void request_gradients(const Position& at, int i) const {
    request_rows<Gradients>(problem_.args.dout, Sequences::value_columns(problem_), problem_.deltas,
                            at, i);
  }
  // The queries of step `i`, which is at `at`.
  template <class Ring>
  __device__ __forceinline__ void request_rows(const ConstTensorView<4>& tensor, int columns,
                                               const float* sums, const Position& at, int i) const {
    const int stage = i % Ring::kBuffers;
    ptx::mbarrier_wait(shared_ + Ring::empty(stage), i / Ring::kBuffers & 1 ^ 1);
    RowCopy<Config, Layout, Config::B_r>::request(
        shared_ + Ring::data(stage),
        tensor.template at<const Element>(Sequences::query_entry(tile_),
                                          Sequences::query_row(tile_), head_of(at)),
        tensor.stride[1], block_of(at) * Config::B_r,
        Sequences::used_queries(problem_, tile_, columns));
    const unsigned thread = ptx::reread_thread_index();
    if (thread < Config::B_r / 4)
      ptx::cp_async_16(shared_ + Ring::rows(stage) + thread * 16,
                       sums + index_of(at) * Config::B_r + thread * 4);
    ptx::mbarrier_arrive_after_copies(shared_ + Ring::full(stage));
  }

  // The block's rows of dK or dV, through the place of K or V.
  __device__ __forceinline__ void store(const TensorView<4>& tensor, int columns,
                                        KeyGradients& values, float factor, int place) const {
    values.for_each([&](float& value) { value *= factor; });
    const unsigned thread = ptx::reread_thread_index();
    store_rounded<Element, Layout>(shared_ + place, first_key(thread / 32),
                                   sharer(thread / 32) * Parts::kColumns, values);
    __syncthreads();
    const typename Sequences::Tile tile = Sequences::tile_again(problem_);
    RowCopy<Config, Layout, Config::B_c>::store(
        shared_ + place,
        tensor.template at<Element>(Sequences::key_entry(tile), Sequences::key_row(tile),
                                    tile.kv_head),
        tensor.stride[1], tile.key_block * Config::B_c,
        Sequences::all_keys(problem_, tile, columns));
  }

  __device__ __forceinline__ static unsigned warp() { return threadIdx.x / 32; }
  __device__ __forceinline__ static int lane() { return threadIdx.x % 32; }
  __device__ __forceinline__ static unsigned sharer(unsigned warp) { return warp % kSharers; }
  // The first of a warp's keys, and of its queries.
  __device__ __forceinline__ static int first_key(unsigned warp) {
    return warp / kSharers * Parts::kKeys;
  }
  __device__ __forceinline__ static int first_query(unsigned warp) {
    return sharer(warp) * Parts::kQueries;
  }
  __device__ __forceinline__ static int own_rows(int query) {
    return first_query(ptx::reread_thread_index() / 32) + query;
  }

  const Problem& problem_;
  const std::uint32_t shared_;
  const typename Sequences::Tile tile_;
  const FragmentAddresses<Layout, Operand::kLeft> key_addresses_;     // K and V, as rows of S
  const FragmentAddresses<Layout, Operand::kRight> query_addresses_;  // Q and dO, as columns of S
  const FragmentAddresses<Layout, Operand::kRightTransposed> column_addresses_;  // Q and dO
  KeyGradients dk_, dv_;
};

}  // namespace kernelmint::attention_backward::sm80

// Threads for CPU kernels: one persistent pool a process, the runtime's, which a library reaches
// through its Host (library.h).
#pragma once

#include <cstdint>

namespace kernelmint {

namespace parallel_detail {
using Range = void (*)(void* context, std::int64_t begin, std::int64_t end, int worker);
void run(std::int64_t count, int num_threads, Range range, void* context);
}  // namespace parallel_detail

// Calls body(index, worker) once for each index in [0, count), on up to `num_threads` threads, the
// caller's included, and returns when all calls have. `worker` is in [0, num_threads) and no two
// calls at one time share it, so it may index scratch memory. Indices are handed out in rising
// order, in small chunks, to whoever is free. Calls may nest and may come from several threads at
// once. The first exception that a body throws is rethrown here, after the others have finished;
// indices not yet handed out are then skipped.
//
// A body is a closure in code that is compiled for one instruction set: its type, and with it this
// function's instance, belongs only to that code, so no two instruction sets share a symbol.
template <class Body>
void parallel_for(std::int64_t count, int num_threads, Body&& body) {
  auto range = [](void* context, std::int64_t begin, std::int64_t end, int worker) {
    auto& call = *static_cast<decltype(&body)>(context);
    for (std::int64_t index = begin; index < end; ++index) call(index, worker);
  };
  parallel_detail::run(count, num_threads, range,
                       const_cast<void*>(static_cast<const void*>(&body)));
}

}  // namespace kernelmint

// The thread pool under everything that is promised of parallel_for, in one program, to be built
// with a sanitizer. Exits 1 if a promise is broken.
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <string_view>
#include <thread>
#include <vector>

#include "generated.h"
#include "library.h"
#include "parallel.h"
#include "thread_pool.h"

extern "C" const kernelmint::LibraryEntry* kernelmint_library(const kernelmint::Host* host);

namespace kernelmint {  // what a library of a pack has beside its threads
const FamilyEntry* const kFamily = nullptr;
const char kGenerated[] = "";
const char kBuild[] = "";
}  // namespace kernelmint

namespace {

using kernelmint::parallel_for;

void expect(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "broken: %s\n", what);
  std::exit(1);
}

// Plain memory throughout: what the pool does not order is a race.
void each_index_once(std::int64_t count, int threads) {
  std::vector<int> calls(count), scratch(threads);
  std::vector<std::int64_t> results(count);
  parallel_for(count, threads, [&](std::int64_t index, int worker) {
    ++calls[index];
    ++scratch[worker];
    results[index] = 3 * index;
  });
  std::int64_t total = 0;
  for (const int done : scratch) total += done;
  expect(total == count, "a worker's calls share no scratch memory");
  for (std::int64_t i = 0; i < count; ++i)
    expect(calls[i] == 1 && results[i] == 3 * i, "each index is called once, before the return");
}

void nested(int threads) {
  std::vector<int> sums(20);
  parallel_for(20, threads, [&](std::int64_t outer, int) {
    std::vector<int> inner(50);
    parallel_for(50, threads, [&](std::int64_t index, int) { inner[index] = 1; });
    for (const int one : inner) sums[outer] += one;
  });
  for (const int sum : sums) expect(sum == 50, "calls nest");
}

void throwing(int threads) {
  std::vector<int> called(1000);
  bool caught = false;
  try {
    parallel_for(1000, threads, [&](std::int64_t index, int) {
      called[index] = 1;
      if (index % 7 == 3) throw std::runtime_error("thrown");
    });
  } catch (const std::runtime_error& error) {
    caught = std::string_view(error.what()) == "thrown";
  }
  expect(caught, "the first exception is rethrown");
}

}  // namespace

int main(int, char** arguments) {
  static const kernelmint::Host host = {.abi = kernelmint::kAbi,
                                        .parallel = &kernelmint::run_parallel};
  kernelmint_library(&host);
  const int rounds = std::atoi(arguments[1]);
  const auto round = [](int threads) {
    for (const std::int64_t count : {1, 2, 5, 64, 3000}) each_index_once(count, threads);
    nested(threads);
    throwing(threads);
  };
  for (int i = 0; i < rounds; ++i) {
    round(2 + i % 7);
    std::vector<std::thread> callers;
    for (int caller = 0; caller < 4; ++caller) callers.emplace_back(round, 1 + caller);
    for (std::thread& caller : callers) caller.join();
    if (i % 8 == 0)  // so that workers fall asleep, and are woken
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  const pid_t child = fork();
  if (child == 0) {
    round(4);
    _exit(0);
  }
  int status = 1;
  expect(waitpid(child, &status, 0) == child && status == 0,
         "a forked child has a pool of its own");
  round(4);
}

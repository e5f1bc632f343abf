// The part of every pack's library beside its family's tables and kernels: its entry, and its way
// to the runtime's threads.
#include "library.h"

#include <atomic>
#include <exception>

#include "generated.h"
#include "parallel.h"

namespace kernelmint {
namespace {

const Host* host = nullptr;

}  // namespace

namespace parallel_detail {

void run(std::int64_t count, int num_threads, Range range, void* context) {
  struct Job {
    Range range;
    void* context;
    std::atomic<bool> failed{false};
    std::exception_ptr error{};  // written by whoever set `failed`
  } job{range, context};
  host->parallel(
      count, num_threads,
      [](void* opaque, std::int64_t begin, std::int64_t end, int worker) {
        Job& job = *static_cast<Job*>(opaque);
        try {
          job.range(job.context, begin, end, worker);
          return true;
        } catch (...) {
          if (!job.failed.exchange(true)) job.error = std::current_exception();
          return false;
        }
      },
      &job);
  if (job.failed.load()) std::rethrow_exception(job.error);
}

}  // namespace parallel_detail
}  // namespace kernelmint

extern "C" __attribute__((visibility("default"))) const kernelmint::LibraryEntry*
kernelmint_library(const kernelmint::Host* host) {
  using namespace kernelmint;
  kernelmint::host = host;
  static const LibraryEntry entry = {
      .abi = kAbi, .generated = kGenerated, .build = kBuild, .family = kFamily};
  return &entry;
}

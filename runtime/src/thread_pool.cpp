#include "thread_pool.h"

#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

namespace kernelmint {
namespace {

using Range = bool (*)(void* context, std::int64_t begin, std::int64_t end, int worker);

using Clock = std::chrono::steady_clock;

// The time for which an idle thread watches for work before it sleeps: a few times the cost of
// waking a sleeper, so that a sequence of short kernels keeps its workers awake.
constexpr auto kSpin = std::chrono::microseconds(30);

void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

template <class Condition>
bool spin_until(Condition condition) {
  const auto deadline = Clock::now() + kSpin;
  do {
    for (int i = 0; i < 32; ++i) {
      if (condition()) return true;
      pause();
    }
  } while (Clock::now() < deadline);
  return condition();
}

// One call of run_parallel; lives on its caller's stack. Fields without a comment are constant.
struct Job {
  Range range;
  void* context;
  std::int64_t count;
  std::int64_t chunk;
  int max_workers;  // beside the caller
  std::atomic<std::int64_t> next{0};
  int joined = 0;               // under the pool's mutex; the next worker's number less one
  std::atomic<int> running{0};  // workers inside; written under the pool's mutex

  bool drained() const { return next.load(std::memory_order_relaxed) >= count; }

  void work(int worker) {
    while (!drained()) {
      const std::int64_t begin = next.fetch_add(chunk, std::memory_order_relaxed);
      if (begin >= count) return;
      if (!range(context, begin, std::min(begin + chunk, count), worker))
        next.store(count, std::memory_order_relaxed);
    }
  }
};

class Pool {
 public:
  void run(Job& job) {
    {
      std::lock_guard lock(mutex_);
      grow(job.max_workers);
      jobs_.push_back(&job);
      posted_.fetch_add(1, std::memory_order_release);
      for (int i = std::min(job.max_workers, sleeping_); i > 0; --i) wake_.notify_one();
    }
    job.work(0);
    {
      std::lock_guard lock(mutex_);
      std::erase(jobs_, &job);  // from here on no worker joins
    }
    const auto idle = [&] { return job.running.load(std::memory_order_acquire) == 0; };
    if (spin_until(idle)) return;
    std::unique_lock lock(mutex_);
    done_.wait(lock, idle);
  }

 private:
  // If the machine refuses another thread, the pool is smaller; the caller may have to work without
  // the pool's threads.
  void grow(int workers) {
    while (num_threads_ < workers) {
      try {
        std::thread([this] { serve(); }).detach();
      } catch (const std::system_error&) {
        return;
      }
      ++num_threads_;
    }
  }

  Job* find() {  // under the mutex
    for (Job* job : jobs_)
      if (job->joined < job->max_workers && !job->drained()) return job;
    return nullptr;
  }

  void serve() {
    std::unique_lock lock(mutex_);
    while (true) {
      if (Job* job = find()) {
        const int worker = ++job->joined;
        job->running.fetch_add(1, std::memory_order_relaxed);
        lock.unlock();
        job->work(worker);
        lock.lock();
        // The job may be gone as soon as this is seen.
        if (job->running.fetch_sub(1, std::memory_order_release) == 1) done_.notify_all();
        continue;
      }
      const std::uint64_t seen = posted_.load(std::memory_order_relaxed);
      const auto posted = [&] { return posted_.load(std::memory_order_acquire) != seen; };
      lock.unlock();
      const bool more = spin_until(posted);
      lock.lock();
      if (more) continue;
      ++sleeping_;
      wake_.wait(lock, posted);
      --sleeping_;
    }
  }

  std::mutex mutex_;
  std::condition_variable wake_;  // workers: a job was posted
  std::condition_variable done_;  // callers: a job's last worker has left
  std::vector<Job*> jobs_;
  int num_threads_ = 0;
  int sleeping_ = 0;
  std::atomic<std::uint64_t> posted_{0};
};

// Never destroyed: the pool's threads may still read it while the process exits. A forked child has
// no thread of its parent's, so the child makes a new pool and does not touch the parent's.
std::atomic<Pool*> pool{nullptr};

Pool& get_pool() {
  Pool* current = pool.load(std::memory_order_acquire);
  if (current != nullptr) return *current;
  static const int registered =
      pthread_atfork(nullptr, nullptr, [] { pool.store(nullptr, std::memory_order_release); });
  static_cast<void>(registered);
  Pool* fresh = new Pool;
  if (pool.compare_exchange_strong(current, fresh, std::memory_order_acq_rel)) return *fresh;
  delete fresh;
  return *current;
}

}  // namespace

void run_parallel(std::int64_t count, int num_threads, Range range, void* context) {
  if (count <= 0) return;
  if (num_threads <= 1 || count == 1) {
    range(context, 0, count, 0);
    return;
  }
  // Chunks are small enough that the last chunks even out unequal work, and large enough that the
  // shared counter is rarely touched if the indices are many and short.
  constexpr std::int64_t kChunksPerThread = 32;
  const int threads = static_cast<int>(std::min<std::int64_t>(num_threads, count));
  Job job{.range = range,
          .context = context,
          .count = count,
          .chunk = std::max<std::int64_t>(1, count / (threads * kChunksPerThread)),
          .max_workers = threads - 1};
  get_pool().run(job);
}

}  // namespace kernelmint

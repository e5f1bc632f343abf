// Scratch memory of CPU kernels.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>

#include "cpu_vector.h"
#include "integers.h"

namespace kernelmint::cpu {
inline namespace KERNELMINT_ISA {

// A block of memory that its thread keeps between calls: a call that allocated its own would pay
// for the first touch of each page anew.
class Scratch {
 public:
  Scratch() = default;
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  ~Scratch() { std::free(data_); }

  // Returns at least `bytes`, aligned to a page; the old content is lost. Null if there is no
  // memory.
  std::byte* reserve(std::size_t bytes) {
    if (bytes > size_) {
      std::free(data_);
      const std::size_t pages = round_up(bytes, kPage);
      data_ = static_cast<std::byte*>(std::aligned_alloc(kPage, pages));
      size_ = data_ != nullptr ? pages : 0;
    }
    return data_;
  }

  // The calling thread's.
  static Scratch& of_thread() {
    thread_local Scratch scratch;
    return scratch;
  }

 private:
  static constexpr std::size_t kPage = 4096;
  std::byte* data_ = nullptr;
  std::size_t size_ = 0;
};

}  // namespace KERNELMINT_ISA
}  // namespace kernelmint::cpu

// A pack's loaded library.
#pragma once

#include <nanobind/nanobind.h>

#include <filesystem>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "kernel.h"
#include "library.h"

namespace kernelmint {

class PackLibrary {
 public:
  // Loads the library at `path`, once a process and for good. `architectures`: its CUDA kernels'
  // architectures, a tuple of texts such as "80" and "90a". Throws LibraryError if the file is no
  // whole library of this processor, exports no entry, or has an ABI of another version.
  PackLibrary(const std::filesystem::path& path, nb::tuple architectures);

  const char* generated() const { return entry_->generated; }
  const char* build() const { return entry_->build; }
  const char* family() const { return entry_->family->name; }
  std::vector<std::string> keys() const;

  // The kernel of a key, which must be among keys().
  Kernel* kernel(const std::string& key, nb::dict parameters, nb::object dispatched,
                 nb::dict likes) const;

 private:
  const LibraryEntry* entry_;
  nb::tuple architectures_;
  std::unordered_map<std::string_view, std::pair<const TargetEntry*, const KernelEntry*>> kernels_;
};

}  // namespace kernelmint

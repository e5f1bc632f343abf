#include "pack_library.h"

#include <dlfcn.h>
#include <elf.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "errors.h"
#include "library.h"
#include "thread_pool.h"

namespace kernelmint {
namespace {

constexpr Host kHost = {.abi = kAbi, .parallel = &run_parallel};

// The dynamic loader maps the parts that the file's headers promise, and a process that touches a
// missing part dies of a bus error. A file that was cut short is therefore refused before.
void check_whole(const std::string& path) {
  const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);  // a pipe would wait
  if (file < 0) throw LibraryError(text(path, ": ", std::strerror(errno)));
  Elf64_Ehdr header;
  struct stat status;
  const bool read_header = read(file, &header, sizeof(header)) == sizeof(header);
  const bool read_status = fstat(file, &status) == 0;
  close(file);
  if (!read_header || !read_status || std::memcmp(header.e_ident, ELFMAG, SELFMAG) != 0 ||
      header.e_ident[EI_CLASS] != ELFCLASS64)
    throw LibraryError(text(path, ": not a shared library"));
  // Linkers put the section headers last.
  const auto size = static_cast<std::uint64_t>(status.st_size);
  const std::uint64_t promised =
      header.e_shoff + std::uint64_t{header.e_shnum} * header.e_shentsize;
  if (promised > size)
    throw LibraryError(
        text(path, ": the file was cut short: it has ", size, " bytes of ", promised));
}

const LibraryEntry* load(const std::string& path) {
  check_whole(path);
  void* const library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) throw LibraryError(dlerror());
  const auto function = reinterpret_cast<LibraryFunction>(dlsym(library, kLibrarySymbol));
  if (function == nullptr)
    throw LibraryError(text(path, ": not a pack's library: it has no ", kLibrarySymbol));
  const LibraryEntry* const entry = function(&kHost);
  if (entry->abi != kAbi)
    throw LibraryError(text(path, ": built for version ", entry->abi,
                            " of the ABI of packs, but this runtime has version ", kAbi));
  return entry;
}

}  // namespace

PackLibrary::PackLibrary(const std::filesystem::path& path, nb::tuple architectures)
    : entry_(load(path.native())), architectures_(std::move(architectures)) {
  const FamilyEntry& family = *entry_->family;
  for (int t = 0; t < family.num_targets; ++t) {
    const TargetEntry& target = *family.targets[t];
    for (std::size_t k = 0; k < target.num_kernels; ++k)
      kernels_.emplace(target.kernels[k].key, std::pair(&target, &target.kernels[k]));
  }
}

std::vector<std::string> PackLibrary::keys() const {
  std::vector<std::string> result;
  const FamilyEntry& family = *entry_->family;
  for (int t = 0; t < family.num_targets; ++t)
    for (std::size_t k = 0; k < family.targets[t]->num_kernels; ++k)
      result.emplace_back(family.targets[t]->kernels[k].key);
  return result;
}

Kernel* PackLibrary::kernel(const std::string& key, nb::dict parameters, nb::object dispatched,
                            nb::dict likes) const {
  const auto found = kernels_.find(key);
  if (found == kernels_.end()) throw nb::key_error(key.c_str());
  const auto [target, kernel] = found->second;
  return new Kernel(*entry_->family, *target, *kernel, architectures_, std::move(parameters),
                    std::move(dispatched), std::move(likes));
}

}  // namespace kernelmint

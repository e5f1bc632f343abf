// The Python module `runtime._native`.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <exception>
#include <string>
#include <string_view>
#include <vector>

#include "build.h"
#include "errors.h"
#include "kernel.h"
#include "processor.h"
#include "registry.h"
#include "torch_bridge.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace {

using namespace kernelmint;

void raise(const char* type, const char* message) {
  const nb::object error = nb::module_::import_("runtime.errors").attr(type);
  PyErr_SetString(error.ptr(), message);
}

nb::list names_of(const std::vector<CpuIsa>& isas) {
  nb::list result;
  for (CpuIsa isa : isas) result.append(name(isa));
  return result;
}

std::vector<std::string> split(std::string_view list) {
  std::vector<std::string> result;
  while (!list.empty()) {
    const std::size_t end = std::min(list.find(','), list.size());
    result.emplace_back(list.substr(0, end));
    list.remove_prefix(std::min(end + 1, list.size()));
  }
  return result;
}

nb::dict build_info() {
  nb::dict info;
  info["cuda"] = KERNELMINT_WITH_CUDA != 0;
  const std::string_view nvcc = KERNELMINT_NVCC_VERSION;
  info["nvcc"] = nvcc.empty() ? nb::object(nb::none()) : nb::str(nvcc.data(), nvcc.size());
  info["architectures"] = split(KERNELMINT_CUDA_ARCHITECTURES);
  info["cpu_isas"] = names_of(built_isas());
  std::vector<CpuIsa> here;
  for (CpuIsa isa : built_isas())
    if (supported(isa)) here.push_back(isa);
  info["supported_cpu_isas"] = names_of(here);
#if defined(__clang__)
  info["compiler"] = "clang " __clang_version__;
#else
  info["compiler"] = "gcc " __VERSION__;
#endif
  info["debug"] = KERNELMINT_DEBUG != 0;
  return info;
}

std::vector<std::string> built_keys() {
  std::vector<std::string> keys;
  for (int f = 0; f < kNumFamilies; ++f)
    for (int t = 0; t < kFamilies[f]->num_targets; ++t)
      for (std::size_t k = 0; k < kFamilies[f]->targets[t]->num_kernels; ++k)
        keys.emplace_back(kFamilies[f]->targets[t]->kernels[k].key);
  return keys;
}

Kernel* find_kernel(const std::string& key, nb::dict parameters, nb::object dispatched) {
  for (int f = 0; f < kNumFamilies; ++f)
    for (int t = 0; t < kFamilies[f]->num_targets; ++t) {
      const TargetEntry& target = *kFamilies[f]->targets[t];
      for (std::size_t k = 0; k < target.num_kernels; ++k)
        if (key == target.kernels[k].key)
          return new Kernel(*kFamilies[f], target, target.kernels[k], std::move(parameters),
                            std::move(dispatched));
    }
  throw nb::key_error(key.c_str());
}

}  // namespace

NB_MODULE(_native, module) {
  module.doc() = "The compiled half of `runtime`: built kernels and their argument checks.";
  nb::register_exception_translator([](const std::exception_ptr& pointer, void*) {
    try {
      std::rethrow_exception(pointer);
    } catch (const InvalidArgument& error) {
      raise("InvalidArgument", error.what());
    } catch (const TargetUnavailable& error) {
      raise("TargetUnavailable", error.what());
    }
  });

  // Kernels live as long as the process: PyTorch's operators hold them.
  nb::set_leak_warnings(false);
  Torch::get();
  module.attr("fingerprint") = nb::str(kFingerprint);
  module.attr("build_fingerprint") = nb::str(kBuildFingerprint);
  module.def("build_info", &build_info);
  module.def("built_keys", &built_keys);
  module.def(
      "active_cpu_isa", [] { return std::string(name(active_isa())); },
      "The instruction set that CPU kernels are resolved for.");
  module.def("kernel", &find_kernel, "key"_a, "parameters"_a = nb::dict(),
             "dispatched"_a = nb::none(), nb::rv_policy::take_ownership);
  module.def("has_exchange_api", [] { return Torch::get().has_exchange_api(); });
  module.def(
      "use_exchange_api", [](bool use) { Torch::get().use_exchange_api(use); }, "use"_a,
      "For tests: reads tensors through Python attributes where false, as with a PyTorch that has "
      "no DLPack exchange table.");

  nb::class_<Kernel>(module, "NativeKernel")
      .def_prop_ro("key", &Kernel::key)
      .def("run", &Kernel::run, "inputs"_a, "scalars"_a, "requested"_a, "out"_a.none())
      .def("trace", &Kernel::trace, "inputs"_a, "scalars"_a, "requested"_a, "out"_a.none())
      .def("call", &Kernel::call, "inputs"_a, "scalars"_a, "requested"_a, "out"_a.none());
}

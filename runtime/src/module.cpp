// The Python module `runtime._native`: loads packs' libraries and calls their kernels.
#include <nanobind/nanobind.h>
#include <nanobind/stl/filesystem.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cstdlib>
#include <exception>
#include <string>
#include <vector>

#include "direct_call.h"
#include "errors.h"
#include "kernel.h"
#include "library.h"
#include "operator_call.h"
#include "pack_library.h"
#include "processor.h"
#include "selector.h"
#include "torch_bridge.h"
#include "torch_dispatch.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace {

using namespace kernelmint;

void raise(const char* type, const char* message) {
  const nb::object error = nb::module_::import_("runtime.errors").attr(type);
  PyErr_SetString(error.ptr(), message);
}

const char* compiler() {
#if defined(__clang__)
  return "clang " __clang_version__;
#else
  return "gcc " __VERSION__;
#endif
}

}  // namespace

NB_MODULE(_native, module) {
  module.doc() =
      "The compiled half of `runtime`: loading packs' libraries, argument checks, launches.";
  nb::register_exception_translator([](const std::exception_ptr& pointer, void*) {
    try {
      std::rethrow_exception(pointer);
    } catch (const InvalidArgument& error) {
      raise("InvalidArgument", error.what());
    } catch (const TargetUnavailable& error) {
      raise("TargetUnavailable", error.what());
    } catch (const LibraryError& error) {
      raise("PackError", error.what());
    }
  });

  // Kernels live as long as the process: PyTorch's operators hold them.
  nb::set_leak_warnings(false);
  // PyTorch is read here, since threads would wait for it at a call with Python's lock held.
  // Listing kernels works without PyTorch.
  if (nb::dict(nb::module_::import_("sys").attr("modules")).contains("torch")) Torch::get();
  module.attr("abi") = kAbi;
  module.attr("compiler") = compiler();
  module.def(
      "active_cpu_isa", [] { return std::string(name(active_isa())); },
      "The instruction set that CPU kernels are resolved for.");
  module.def(
      "supported_cpu_isas",
      [] {
        std::vector<std::string> result;
        for (CpuIsa isa : supported_isas()) result.emplace_back(name(isa));
        return result;
      },
      "The instruction sets that this processor runs, the least first.");
  module.def(
      "is_set",
      [](const char* variable) {
        const char* const value = std::getenv(variable);
        return value != nullptr && *value != '\0';
      },
      "variable"_a,
      "Whether an environment variable is there and not empty: os.environ takes ten times as long "
      "to say that one is not.");
  module.def("has_exchange_api", [] { return Torch::get().has_exchange_api(); });
  module.def(
      "use_exchange_api", [](bool use) { Torch::get().use_exchange_api(use); }, "use"_a,
      "For tests: reads tensors through Python attributes if false, as with a PyTorch that has "
      "no DLPack exchange table.");

  nb::class_<PackLibrary>(module, "Library")
      .def(nb::init<const std::filesystem::path&, nb::tuple>(), "path"_a,
           "architectures"_a = nb::tuple())
      .def_prop_ro("generated", &PackLibrary::generated)
      .def_prop_ro("build", &PackLibrary::build)
      .def_prop_ro("family", &PackLibrary::family)
      .def("keys", &PackLibrary::keys)
      .def("kernel", &PackLibrary::kernel, "key"_a, "parameters"_a = nb::dict(),
           "dispatched"_a = nb::none(), "likes"_a = nb::dict(), nb::rv_policy::take_ownership);
  nb::class_<Kernel>(module, "NativeKernel")
      .def_prop_ro("key", &Kernel::key)
      .def("run", &Kernel::run, "inputs"_a, "scalars"_a, "requested"_a, "out"_a.none())
      .def("launch_times", &Kernel::launch_times, "inputs"_a, "scalars"_a, "requested"_a,
           "out"_a.none(), "count"_a)
      .def("trace", &Kernel::trace, "inputs"_a, "scalars"_a, "requested"_a, "out"_a.none())
      .def("call", &Kernel::call, "inputs"_a, "scalars"_a, "requested"_a, "out"_a.none())
      .def("serve", &Kernel::serve, "kernel"_a);
  nb::class_<Selector>(module, "Selector")
      .def(nb::init<nb::object, nb::object, nb::object>(), "watched"_a, "find"_a, "otherwise"_a)
      .def("call", &Selector::call, "inputs"_a, "scalars"_a, "requested"_a, "out"_a.none(),
           "flags"_a, "permuted"_a)
      .def("forget", &Selector::forget);
  nb::class_<OperatorCall>(module, "OperatorCall")
      .def(nb::init<nb::object, nb::object, nb::object, nb::object>(), "described"_a, "known"_a,
           "is_device_next"_a.none(), "otherwise"_a)
      .def("call", &OperatorCall::call);
  nb::class_<DirectCall>(module, "DirectCall", nb::dynamic_attr(), nb::is_weak_referenceable(),
                         nb::type_slots(DirectCall::slots))
      .def(nb::init<nb::object, nb::object, nb::object>(), "call"_a, "is_plain"_a, "through"_a)
      .def_prop_ro("through", &DirectCall::through)
      .def("__copy__", [](nb::handle self) { return self; })  // like PyTorch's function
      .def("__deepcopy__", [](nb::handle self, nb::handle) { return self; }, "memo"_a);
  module.def(
      "thread_keys",
      []() -> nb::object {
        const auto keys = TorchDispatch::get().keys();
        if (!keys.has_value()) return nb::none();
        return nb::make_tuple(keys->included, keys->excluded);
      },
      "The dispatch keys that this thread's modes and guards change, as the numbers (included, "
      "excluded); None if this PyTorch does not show them.");
}

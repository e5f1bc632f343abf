// The part of DLPack's C ABI that the runtime uses, declared from its specification, version 1.3:
// https://dmlc.github.io/dlpack/latest/c_api.html and .../python_spec.html. Layouts and numbers are
// DLPack's; unused parts are not declared.
#pragma once

#include <cstdint>

namespace kernelmint::dlpack {

enum DeviceType : std::int32_t { kCpu = 1, kCuda = 2 };

struct Device {
  std::int32_t type;
  std::int32_t id;
};

struct DataType {
  std::uint8_t code;
  std::uint8_t bits;
  std::uint16_t lanes;
};

// Strides count elements. Producers before DLPack 1.2 may leave them null for a contiguous tensor.
struct Tensor {
  void* data;
  Device device;
  std::int32_t ndim;
  DataType dtype;
  std::int64_t* shape;
  std::int64_t* strides;
  std::uint64_t byte_offset;
};

struct Version {
  std::uint32_t major, minor;
};

// The table in the capsule "dlpack_exchange_api", which a tensor type carries as
// `__dlpack_c_exchange_api__`. It lives as long as the process.
struct ExchangeApi {
  Version version;
  ExchangeApi* previous;
  void (*managed_tensor_allocator)();               // not called: declared for the layout
  void (*managed_tensor_from_py_object_no_sync)();  // not called
  void (*managed_tensor_to_py_object_no_sync)();    // not called
  // Fills a borrowed view, alive while the object is. May be null. Returns 0, or -1 with a Python
  // error set.
  int (*dltensor_from_py_object_no_sync)(void* object, Tensor* out);
  // Stores the stream that the framework would launch on now. Returns 0, or -1 with a Python error
  // set.
  int (*current_work_stream)(std::int32_t device_type, std::int32_t device_id, void** out);
};

inline constexpr const char* kCapsuleName = "dlpack_exchange_api";
inline constexpr std::uint32_t kMajorVersion = 1;

}  // namespace kernelmint::dlpack

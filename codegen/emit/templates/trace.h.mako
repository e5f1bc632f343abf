#pragma once

#include "arithmetic.h"
#include "dtypes.h"
#include "tensor_view.h"

namespace kernelmint::${family} {

// True if a configuration is traced.
template <class Config>
concept Traced = Config::${trace.parameter};

// The record that a traced kernel writes for each of [${grid}].
template <class Config>
struct TraceRecord {
% for declaration, comment in record:
  float ${declaration};${f"  // {comment}" if comment else ""}
% endfor
};

// The arguments of a traced kernel; trace.data is null if the caller asks for no trace.
template <class Args>
struct TracedArgs : Args {
  TensorView<${len(trace.grid)}> trace;  // TraceRecords
};

}  // namespace kernelmint::${family}

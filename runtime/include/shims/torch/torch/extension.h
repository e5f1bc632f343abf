// A shim of PyTorch's header: no tensors and no bindings, but what kernels find through it.
#pragma once

#include <c10/util/BFloat16.h>
#include <c10/util/Exception.h>
#include <c10/util/Half.h>

#include <algorithm>
#include <cassert>
#include <cmath>
#include <cstdint>
#include <type_traits>

// The same with the slopes' gradient: the arguments name `dalibi_slopes`, for which the kernels
// look.
#pragma once

#include "attention/sm80_prefill_backward.cuh"

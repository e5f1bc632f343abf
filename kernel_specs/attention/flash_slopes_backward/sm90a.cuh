// The same with the slopes' gradient: the arguments name `dalibi_slopes`, for which the kernels
// look.
#pragma once

#include "attention/sm90a_prefill_backward.cuh"
#include "flash_slopes_backward/sm90a_wgmma.cuh"

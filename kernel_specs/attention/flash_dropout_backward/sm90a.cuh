// The same with dropout: the arguments name `dropout_p`, for which the kernels look.
#pragma once

#include "attention/sm90a_prefill_backward.cuh"
#include "flash_dropout_backward/sm90a_wgmma.cuh"

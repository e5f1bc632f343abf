// The same with dropout: the arguments name `dropout_p`, for which the kernels look.
#pragma once

#include "attention/sm80_prefill_backward.cuh"

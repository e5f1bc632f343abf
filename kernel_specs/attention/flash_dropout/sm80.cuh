// The same with dropout: the arguments name `dropout_p`, for which the kernel looks.
#pragma once

#include "attention/sm80_prefill.cuh"

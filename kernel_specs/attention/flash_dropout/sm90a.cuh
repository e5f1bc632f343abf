// The same with dropout: the arguments name `dropout_p`, for which the kernel looks.
#pragma once

#include "attention/sm90a_prefill.cuh"
#include "flash_dropout/sm90a_wgmma.cuh"

// Attention backward of sequences of any lengths for compute capability 9.0.
#pragma once

#include "attention/sm90a_prefill_backward.cuh"
#include "flash_prefill_backward/sm90a_wgmma.cuh"

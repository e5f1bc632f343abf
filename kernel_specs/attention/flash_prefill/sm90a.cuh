// Attention of sequences of any lengths for compute capability 9.0.
#pragma once

#include "attention/sm90a_prefill.cuh"
#include "flash_prefill/sm90a_wgmma.cuh"

// Attention of sequences of any lengths for compute capability 8.0 and later.
#pragma once

#include "attention/sm80_prefill.cuh"

// Block-sparse attention over padded sequences, on tensor cores.
#pragma once

#include "hstu/block_sparse/problem.h"
#include "hstu/sm80.cuh"

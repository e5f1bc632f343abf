// Block-sparse attention over padded sequences, on the CPU.
#pragma once

#include "hstu/block_sparse/problem.h"
#include "hstu/cpu.h"

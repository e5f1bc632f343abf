// Block-sparse attention over jagged sequences, on tensor cores.
#pragma once

#include "hstu/hstu_bsa/problem.h"
#include "hstu/sm80.cuh"

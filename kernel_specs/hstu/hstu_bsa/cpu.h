// Block-sparse attention over jagged sequences, on the CPU.
#pragma once

#include "hstu/cpu.h"
#include "hstu/hstu_bsa/problem.h"

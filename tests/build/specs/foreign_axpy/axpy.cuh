// A kernel that is not a template: axpy.cu defines it.
#pragma once

#include "foreign_axpy/args.h"

__global__ void axpy_kernel(const kernelmint::foreign_axpy::Args args);

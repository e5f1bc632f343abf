#include "foreign_axpy/axpy.h"

float axpy_bias() { return AXPY_BIAS; }

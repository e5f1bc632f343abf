// The same with dropout: the arguments name `dropout_p`, for which the loop looks.
#pragma once

#include "attention/cpu_prefill_backward.h"

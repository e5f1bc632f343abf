// The same with the slopes' gradient: the arguments name `dalibi_slopes`, for which the loop looks.
#pragma once

#include "attention/cpu_prefill_backward.h"

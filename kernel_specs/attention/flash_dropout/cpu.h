// The same with dropout: the arguments name `dropout_p`, for which tiles look.
#pragma once

#include "attention/cpu_prefill.h"

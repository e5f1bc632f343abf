// Attention of many queries on the CPU: cpu_prefill.h's tiles.
#pragma once

#include "attention/cpu_prefill.h"

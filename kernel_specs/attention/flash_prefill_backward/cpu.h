// Gradients of sequences of any lengths on the CPU: cpu_prefill_backward.h's call.
#pragma once

#include "attention/cpu_prefill_backward.h"

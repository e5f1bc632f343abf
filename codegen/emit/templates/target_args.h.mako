#pragma once

#include <cstdint>

#include "${target.family}/args.h"
#include "dtypes.h"

% if target.name == "cpu":
namespace kernelmint::cpu {}

% endif
namespace kernelmint::${target.family}::${target.name} {
% if target.name == "cpu":

using namespace kernelmint::cpu;  // kernelmint::${target.family} hides the names of kernelmint::cpu
% endif

// Scratch memory of a call; a pointer is null if the call needs no such memory.
struct Workspace {
% for part in target.workspace:
  ${pointer(part)} ${part.name};  // ${comment(part.note)}
% endfor
};

struct Args : ${target.family}::Args {
  Workspace workspace;
};

}  // namespace kernelmint::${target.family}::${target.name}

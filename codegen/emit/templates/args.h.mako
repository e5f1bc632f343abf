#pragma once

#include <cstdint>

#include "tensor_view.h"

namespace kernelmint::${family.name} {

struct Args {
% for argument in arguments:
  ${argument.declaration}  // ${argument.comment}
% endfor
% if family.symbols:
  std::int64_t ${", ".join(family.symbols)};
% endif
};

}  // namespace kernelmint::${family.name}

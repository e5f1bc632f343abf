#pragma once

#include <cstdint>

#include "tensor_view.h"

namespace kernelmint::${family.name} {

struct Args {
% for declaration, comment in arguments:
  ${declaration}  // ${comment}
% endfor
% if family.symbols:
  std::int64_t ${", ".join(family.symbols)};
% endif
};

}  // namespace kernelmint::${family.name}

#pragma once

#include <cstdint>

% if has_lists:
#include "tensor_list.h"
% else:
#include "tensor_view.h"
% endif

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

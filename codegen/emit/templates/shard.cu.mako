#include "dtypes.h"
% for include in includes:
#include "${include}"
% endfor

namespace kernelmint::configs::${family}::${target} {
% for configuration in configurations:

struct ${configuration.type_name} {
  using Args = kernelmint::${configuration.args_type};
  static constexpr char key[] = "${configuration.key}";
% for member in configuration.members:
  ${member}
% endfor
};
% endfor

}  // namespace kernelmint::configs::${family}::${target}

% for configuration in configurations:
template kernelmint::LaunchResult
kernelmint::launch<kernelmint::configs::${family}::${target}::${configuration.type_name},
                   kernelmint::isa::${isa}>(const void*, const kernelmint::LaunchContext&);
% endfor

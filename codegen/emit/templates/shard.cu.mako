#include "dtypes.h"
% for include in includes:
#include "${include}"
% endfor

namespace kernelmint::configs::${target.family}::${target.name} {
% for configuration in configurations:

struct ${configuration.type_name} {
  using Args = kernelmint::${args_type(configuration)};
  static constexpr char key[] = "${configuration.key}";
% for member in members(configuration):
  ${member}
% endfor
};
% endfor

}  // namespace kernelmint::configs::${target.family}::${target.name}

% for configuration in configurations:
template kernelmint::LaunchResult
kernelmint::launch<kernelmint::configs::${target.family}::${target.name}::${configuration.type_name},
                   kernelmint::isa::${isa}>(const void*, const kernelmint::LaunchContext&);
% endfor

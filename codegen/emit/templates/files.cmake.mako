# Included by kernelmint_add_pack. Sources are relative to this file's folder.
set(KERNELMINT_SPEC_DIRS
% for folder in spec_dirs:
  "${folder}"
% endfor
)
set(KERNELMINT_CUDA_TARGETS${"".join(" " + name for name in cuda_targets)})
set(KERNELMINT_FAMILIES ${" ".join(family.name for family in families)})
% for family in families:

set(KERNELMINT_FINGERPRINT_${family.name} "${family.fingerprint}")
% for setting in family.build:
set(KERNELMINT_FAMILY_BUILD_${setting.name}_${family.name}
% for value in setting.values:
  "${value}"
% endfor
)
% endfor
set(KERNELMINT_TARGETS_${family.name} ${" ".join(target.name for target in family.targets)})
% for target in family.targets:
set(KERNELMINT_KERNELS_${family.name}_${target.name} ${target.kernels})
set(KERNELMINT_SOURCES_${family.name}_${target.name}
% for path in target.sources:
  ${path}
% endfor
)
% for setting in target.build:
set(KERNELMINT_BUILD_${setting.name}_${family.name}_${target.name}
% for value in setting.values:
  "${value}"
% endfor
)
% endfor
% endfor
% endfor

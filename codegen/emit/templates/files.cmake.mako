# Included by kernelmint_add_pack. Sources are relative to this file's folder.
set(KERNELMINT_SPEC_DIRS
% for folder in spec_dirs:
  "${folder}"
% endfor
)
set(KERNELMINT_CUDA_TARGETS${"".join(" " + name for name in cuda_targets)})
set(KERNELMINT_FAMILIES ${" ".join(space.family.name for space in spaces)})
% for space in spaces:
<% family = space.family %>\

set(KERNELMINT_FINGERPRINT_${family.name} "${fingerprints[family.name]}")
% for name, values in settings(family.build):
set(KERNELMINT_FAMILY_BUILD_${name}_${family.name}
% for value in values:
  "${value}"
% endfor
)
% endfor
set(KERNELMINT_TARGETS_${family.name} ${" ".join(chosen.target.name for chosen in space.targets)})
% for chosen in space.targets:
<% target = chosen.target %>\
set(KERNELMINT_KERNELS_${family.name}_${target.name} ${len(chosen.configurations)})
set(KERNELMINT_SOURCES_${family.name}_${target.name}
% for path in shards.get((family.name, target.name), ()):
  ${path}
% endfor
)
% if (family.name, target.name) in options:
set(KERNELMINT_OPTIONS_${family.name}_${target.name} ${" ".join(options[family.name, target.name])})
% for name, (flags, paths) in options[family.name, target.name].items():
set(KERNELMINT_OPTION_FLAGS_${name}_${family.name}_${target.name}
% for flag in flags:
  "${word(flag)}"
% endfor
)
set(KERNELMINT_OPTION_SOURCES_${name}_${family.name}_${target.name}
% for path in paths:
  ${path}
% endfor
)
% endfor
% endif
% for name, values in settings(target.build):
set(KERNELMINT_BUILD_${name}_${family.name}_${target.name}
% for value in values:
  "${value}"
% endfor
)
% endfor
% endfor
% endfor

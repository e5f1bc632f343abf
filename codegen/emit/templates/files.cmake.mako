# Included by CMakeLists.txt. Sources are relative to this file's folder.
set(KERNELMINT_FINGERPRINT "${fingerprint}")
set(KERNELMINT_SPEC_DIRS
% for folder in spec_dirs:
  "${folder}"
% endfor
)
set(KERNELMINT_FAMILIES ${" ".join(families)})
set(KERNELMINT_COMMON_SOURCES
% for path in common:
  ${path}
% endfor
)
set(KERNELMINT_TARGETS ${" ".join(target.name for target in targets)})
set(KERNELMINT_CUDA_TARGETS${"".join(" " + target.name for target in targets if target.is_cuda)})
% for target in targets:

set(KERNELMINT_KERNELS_${target.name} ${target.kernels})
set(KERNELMINT_SOURCES_${target.name}
% for path in target.sources:
  ${path}
% endfor
)
set(KERNELMINT_TABLES_${target.name}
% for path in target.tables:
  ${path}
% endfor
)
% endfor

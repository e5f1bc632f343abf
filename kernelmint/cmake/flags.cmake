# Flags of compilers and linkers: flags.json, which building on demand also reads
# (runtime/ondemand/compilers.py). CMake's Release adds -O3 and -DNDEBUG.
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${KERNELMINT_CMAKE}/flags.json")
file(READ "${KERNELMINT_CMAKE}/flags.json" KERNELMINT_FLAGS_JSON)

# KERNELMINT_FLAGS_<name>: the flags at a path of the file.
function(kernelmint_read_flags name)
  string(JSON last LENGTH "${KERNELMINT_FLAGS_JSON}" ${ARGN})
  set(flags)
  if(last GREATER 0)
    math(EXPR last "${last} - 1")
    foreach(at RANGE ${last})
      string(JSON flag GET "${KERNELMINT_FLAGS_JSON}" ${ARGN} ${at})
      list(APPEND flags "${flag}")
    endforeach()
  endif()
  set(KERNELMINT_FLAGS_${name} "${flags}" PARENT_SCOPE)
endfunction()

string(JSON KERNELMINT_STANDARD GET "${KERNELMINT_FLAGS_JSON}" standard)
foreach(_name optimise host cuda cuda_host cpu link)
  kernelmint_read_flags(${_name} ${_name})
endforeach()
list(TRANSFORM KERNELMINT_FLAGS_cuda_host PREPEND -Xcompiler=)

# Instruction sets of a CPU's kernels, the least first.
string(JSON _last LENGTH "${KERNELMINT_FLAGS_JSON}" isas)
math(EXPR _last "${_last} - 1")
set(KERNELMINT_KNOWN_ISAS)
foreach(_at RANGE ${_last})
  string(JSON _isa MEMBER "${KERNELMINT_FLAGS_JSON}" isas ${_at})
  kernelmint_read_flags(${_isa} isas ${_isa})
  list(APPEND KERNELMINT_KNOWN_ISAS ${_isa})
endforeach()

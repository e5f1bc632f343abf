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

# Line information is for profilers, and takes more bytes than the machine code.
option(KERNELMINT_LINE_INFO "Names lines of sources in the machine code of CUDA kernels" OFF)

# With SOURCE_DATE_EPOCH the libraries depend on neither the folder nor the moment. CUDA's line information
# does: it has the paths of sources, and when they were written. So do files that are compiled together,
# which is measured.
set(KERNELMINT_REPRODUCIBLE OFF)
if(DEFINED ENV{SOURCE_DATE_EPOCH})
  set(KERNELMINT_REPRODUCIBLE ON)
endif()
if(KERNELMINT_LINE_INFO AND NOT KERNELMINT_REPRODUCIBLE)
  list(APPEND KERNELMINT_FLAGS_cuda -lineinfo)
endif()

# Gives folders, each as `path=name`, the names that objects have for them, in __FILE__ and in debug
# information. Of folders within each other the last counts.
function(kernelmint_name_folders)
  if(KERNELMINT_REPRODUCIBLE)
    foreach(option IN LISTS ARGN)
      string(PREPEND option -ffile-prefix-map=)
      add_compile_options("$<$<COMPILE_LANGUAGE:CXX>:${option}>"
                          "$<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=\"${option}\">")
    endforeach()
  endif()
endfunction()

if(KERNELMINT_REPRODUCIBLE)
  kernelmint_run(_cache "" ${KERNELMINT_PYTHON} "${KERNELMINT_CODEGEN}/core/home.py")
  kernelmint_name_folders("${KERNELMINT_ROOT}=kernelmint" "${CMAKE_CURRENT_SOURCE_DIR}=." "${_cache}=cache"
                          "${CMAKE_BINARY_DIR}=build")
endif()

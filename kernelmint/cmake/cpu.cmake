# CPU targets: each shard is compiled once for every chosen instruction set; the runtime picks the
# best that the processor has.
include(CheckCXXCompilerFlag)

set(_default all)
if(SKBUILD_STATE STREQUAL "editable")  # for development, on this machine
  set(_default native)
endif()
set(KERNELMINT_ISAS ${_default} CACHE STRING
    "Instruction sets of the CPU's kernels: all, native (this processor's best), or a list of these and names")

set(_isas baseline)  # that the compiler has
if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64)$")
  foreach(isa IN LISTS KERNELMINT_KNOWN_ISAS)
    if(NOT KERNELMINT_FLAGS_${isa})
      continue()
    endif()
    check_cxx_compiler_flag(${KERNELMINT_FLAGS_${isa}} KERNELMINT_HAS_${isa})
    if(KERNELMINT_HAS_${isa})
      list(APPEND _isas ${isa})
    endif()
  endforeach()
endif()

# The best that both this processor and the compiler have.
function(kernelmint_native_isa known result)
  # Not cached: the next configuration may run on another machine.
  try_run(ran compiled SOURCES "${KERNELMINT_CMAKE}/native_isas.cpp" NO_CACHE
          CMAKE_FLAGS "-DINCLUDE_DIRECTORIES=${KERNELMINT_RUNTIME}/include"
          CXX_STANDARD 17 CXX_STANDARD_REQUIRED ON  # from 20 on CMake looks for modules
          COMPILE_OUTPUT_VARIABLE log RUN_OUTPUT_VARIABLE isas)
  if(NOT compiled OR NOT ran EQUAL 0)
    message(FATAL_ERROR "Kernelmint: KERNELMINT_ISAS=native: this processor's instruction sets "
            "cannot be found; name them, such as KERNELMINT_ISAS=avx2\n${log}")
  endif()
  foreach(isa IN LISTS isas)
    if(isa IN_LIST known)
      set(${result} ${isa} PARENT_SCOPE)
    endif()
  endforeach()
endfunction()

set(KERNELMINT_CHOSEN_ISAS)
foreach(isa IN LISTS KERNELMINT_ISAS)
  if(isa STREQUAL "all")
    list(APPEND KERNELMINT_CHOSEN_ISAS ${_isas})
  elseif(isa STREQUAL "native")
    kernelmint_native_isa("${_isas}" _native)
    list(APPEND KERNELMINT_CHOSEN_ISAS ${_native})
  elseif(isa IN_LIST _isas)
    list(APPEND KERNELMINT_CHOSEN_ISAS ${isa})
  else()
    message(FATAL_ERROR "Kernelmint: KERNELMINT_ISAS: got '${isa}', expected all, native, or what this "
            "compiler has of ${_isas}")
  endif()
endforeach()
list(REMOVE_DUPLICATES KERNELMINT_CHOSEN_ISAS)
if(NOT KERNELMINT_CHOSEN_ISAS)
  message(FATAL_ERROR "Kernelmint: KERNELMINT_ISAS is empty: expected all, native, or a list of ${_isas}")
endif()

# Adds the shards and sources of a CPU target to the library, one set of objects for each instruction
# set.
function(kernelmint_add_cpu_target library family target shards sources)
  foreach(isa IN LISTS KERNELMINT_CHOSEN_ISAS)
    set(objects ${library}_${target}_${isa})
    if(shards OR sources)
      kernelmint_add_cpu_objects(${library} ${objects} ${isa} ${family} ${target} "${shards};${sources}")
    endif()
    foreach(options IN LISTS KERNELMINT_OPTIONS_${family}_${target})
      set(files ${KERNELMINT_OPTION_SOURCES_${options}_${family}_${target}})
      list(TRANSFORM files PREPEND "${KERNELMINT_GENERATED}/")
      kernelmint_add_cpu_objects(${library} ${objects}_${options} ${isa} ${family} ${target} "${files}")
      kernelmint_compile_with_options(${objects}_${options} ${options} ${family} ${target})
    endforeach()
    target_compile_definitions(${library} PRIVATE KERNELMINT_ISA_${isa})
  endforeach()
endfunction()

# Adds objects for one instruction set to the library.
function(kernelmint_add_cpu_objects library objects isa family target sources)
  add_library(${objects} OBJECT ${sources})
  kernelmint_set_language(${objects})
  target_include_directories(${objects} PRIVATE ${KERNELMINT_INCLUDES})
  target_compile_definitions(${objects} PRIVATE KERNELMINT_ISA=${isa})
  # -Wno-psabi: vectors wider than the baseline's never cross a call that is not inlined.
  target_compile_options(${objects} PRIVATE ${KERNELMINT_FLAGS_optimise} ${KERNELMINT_FLAGS_${isa}}
                         ${KERNELMINT_FLAGS_cpu})
  kernelmint_compile_as(${objects} KERNELMINT_BUILD ${family}_${target} CXX)
  # Headers are about half of a file's work: four files share one compilation.
  set_target_properties(${objects} PROPERTIES JOB_POOL_COMPILE kernels UNITY_BUILD ON
                        UNITY_BUILD_BATCH_SIZE 4)
  target_sources(${library} PRIVATE $<TARGET_OBJECTS:${objects}>)
endfunction()

# CUDA targets: the nvcc, the architectures, and the logs of each compilation. Included by
# kernelmint_add_pack if a pack has CUDA targets, at file scope, since it enables the language.
include_guard(GLOBAL)

if(CMAKE_CUDA_COMPILER)
  set(_nvcc "${CMAKE_CUDA_COMPILER}")
  set(_origin "named by CMAKE_CUDA_COMPILER")
else()
  execute_process(COMMAND "${Python_EXECUTABLE}" "${KERNELMINT_CODEGEN}/build/nvcc.py"
                  OUTPUT_VARIABLE _nvcc ERROR_VARIABLE _reason RESULT_VARIABLE _failed)
  if(_failed)
    message(FATAL_ERROR "Kernelmint: ${_reason} (a build with isolation does that itself), or build "
            "without CUDA: -C cmake.define.KERNELMINT_CUDA=OFF")
  endif()
  list(POP_FRONT _nvcc _origin)
  if(_origin STREQUAL "from PyPI")
    cmake_path(GET _nvcc PARENT_PATH _toolkit)
    cmake_path(GET _toolkit PARENT_PATH _toolkit)
    kernelmint_keep("${_toolkit}" cuda _toolkit)
    set(_nvcc "${_toolkit}/bin/nvcc")
  endif()
endif()
set(CMAKE_CUDA_COMPILER "${_nvcc}")

cmake_path(GET _nvcc PARENT_PATH _toolkit)
cmake_path(GET _toolkit PARENT_PATH _toolkit)
if(EXISTS "${_toolkit}/lib/libcudart_static.a")
  # A wheel's toolkit, whoever named it: the nvcc.profile of 13.0 and 13.1 looks for lib64. The device
  # link of CMake's compiler check is the only link nvcc does here.
  set(ENV{NVCC_APPEND_FLAGS} "$ENV{NVCC_APPEND_FLAGS} -L${_toolkit}/lib")
endif()

set(KERNELMINT_WITHOUT_GPU all CACHE STRING
    "CUDA architectures if no GPU is present and none is asked for: all that the targets name, or the newest")
if(NOT KERNELMINT_WITHOUT_GPU MATCHES "^(all|newest)$")
  message(FATAL_ERROR "Kernelmint: KERNELMINT_WITHOUT_GPU: got '${KERNELMINT_WITHOUT_GPU}', expected all or "
          "newest")
endif()
set(KERNELMINT_ASKED "${CMAKE_CUDA_ARCHITECTURES}")
set(CMAKE_CUDA_ARCHITECTURES OFF)  # each target names its own
enable_language(CUDA)
message(STATUS "Kernelmint: nvcc ${CMAKE_CUDA_COMPILER_VERSION} (${_origin}): ${CMAKE_CUDA_COMPILER}")
kernelmint_name_folders("${CMAKE_CUDA_COMPILER_TOOLKIT_ROOT}=cuda")

# Calls codegen/core/architectures.py, which parses names of architectures.
function(kernelmint_architectures result)
  kernelmint_run(names "" ${KERNELMINT_PYTHON} "${KERNELMINT_CODEGEN}/core/architectures.py" ${ARGN})
  set(${result} "${names}" PARENT_SCOPE)
endfunction()

# The architectures to build `targets` for: the user's, else those of the GPUs present, else those that the
# targets name, or the newest of them.
function(kernelmint_choose_architectures targets result)
  set(_of --all)
  if(KERNELMINT_ASKED AND NOT KERNELMINT_ASKED STREQUAL "native")
    set(_asked ${KERNELMINT_ASKED})
    set(_asked_by "asked for")
  else()
    execute_process(COMMAND nvidia-smi --query-gpu=compute_cap --format=csv,noheader
                    OUTPUT_VARIABLE _asked RESULT_VARIABLE _no_gpu ERROR_QUIET
                    OUTPUT_STRIP_TRAILING_WHITESPACE)
    if(_no_gpu EQUAL 0 AND _asked MATCHES "^[0-9.\n]+$")
      string(REPLACE "." "" _asked "${_asked}")
      string(REPLACE "\n" ";" _asked "${_asked}")
      set(_asked_by "of the GPUs present")
    elseif(KERNELMINT_ASKED STREQUAL "native")
      message(FATAL_ERROR "Kernelmint: CMAKE_CUDA_ARCHITECTURES=native, and nvidia-smi shows no GPU; "
              "name the architectures: -C cmake.define.CMAKE_CUDA_ARCHITECTURES=\"80;90\"")
    else()
      set(_asked ${targets})
      set(_asked_by "the targets name")
      if(KERNELMINT_WITHOUT_GPU STREQUAL "newest")
        set(_of --newest)
        set(_asked_by "the newest that the targets name")
      endif()
    endif()
  endif()
  kernelmint_architectures(_chosen ${_of} ${_asked})
  message(STATUS "Kernelmint: CUDA architectures ${_asked_by}: ${_chosen}")
  set(${result} "${_chosen}" PARENT_SCOPE)
endfunction()

# Refuses an nvcc that compiles a kernel wrongly, as toolkits.csv of a folder of specs has it.
function(kernelmint_check_toolkit architectures)
  list(TRANSFORM KERNELMINT_SPEC_DIRS APPEND "/toolkits.csv" OUTPUT_VARIABLE tables)
  file(GLOB tables CONFIGURE_DEPENDS ${tables})
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${tables})
  kernelmint_run(_ "" ${KERNELMINT_PYTHON} "${KERNELMINT_CODEGEN}/ptxas/check_toolkit.py"
                 "${KERNELMINT_GENERATED}/manifest.json" ${KERNELMINT_SPEC_DIRS}
                 --nvcc ${CMAKE_CUDA_COMPILER_VERSION} --architectures ${architectures})
endfunction()

# Sets `shards` to the files that are compiled for a target: the shards, or, if headers cost more than
# kernels, a few files that include them, in `units` beside the folder of logs.
function(kernelmint_group_shards family target architectures ptxas shards)
  cmake_path(REPLACE_FILENAME ptxas units OUTPUT_VARIABLE units)
  kernelmint_find_places("${KERNELMINT_BUILD_INCLUDE_${family}_${target}}" foreign)
  string(TOUPPER "${CMAKE_BUILD_TYPE}" config)
  separate_arguments(flags UNIX_COMMAND "${CMAKE_CUDA_FLAGS} ${CMAKE_CUDA_FLAGS_${config}}")
  set(command ${CMAKE_CUDA_COMPILER} ${flags} -std=c++${KERNELMINT_STANDARD} ${KERNELMINT_FLAGS_cuda}
      ${KERNELMINT_FLAGS_cuda_host})
  if(CMAKE_CUDA_HOST_COMPILER)
    list(APPEND command -ccbin "${CMAKE_CUDA_HOST_COMPILER}")
  endif()
  if(KERNELMINT_DEBUG)
    list(APPEND command -G -DKERNELMINT_DEBUG=1)
  endif()
  list(TRANSFORM architectures REPLACE "^(.*)-real$"
       "--generate-code=arch=compute_\\1,code=[sm_\\1]" OUTPUT_VARIABLE code)
  set(include ${KERNELMINT_INCLUDES})
  list(TRANSFORM include PREPEND "-I")
  list(TRANSFORM foreign PREPEND "-isystem=")
  execute_process(
    COMMAND ${KERNELMINT_PYTHON} "${KERNELMINT_CODEGEN}/build/units.py"
            "${KERNELMINT_GENERATED}/manifest.json" ${family} ${target} "${units}"
            --jobs ${KERNELMINT_JOBS} -- ${command} ${code} ${include} ${foreign}
    OUTPUT_VARIABLE found ERROR_VARIABLE said RESULT_VARIABLE failed)
  if(failed)
    message(FATAL_ERROR "Kernelmint: ${said}")
  endif()
  if(said)
    message(STATUS "Kernelmint: ${said}")
  endif()
  if(found)
    set(${shards} "${found}" PARENT_SCOPE)
  endif()
endfunction()

# Adds the shards and the sources of a CUDA target to the library; sets `built` to the architectures
# that it is built for: none, if no requested architecture suits it.
function(kernelmint_add_cuda_target library family target shards sources ptxas built)
  kernelmint_architectures(architectures ${target} ${KERNELMINT_ARCHITECTURES})
  set(${built} "${architectures}" PARENT_SCOPE)
  if(NOT architectures)
    message(STATUS "Kernelmint: ${family}.${target}: not built, no architecture asked for suits it "
            "(${KERNELMINT_ARCHITECTURES})")
    return()
  endif()
  if(shards OR sources)
    set(objects ${library}_${target})
    if(NOT KERNELMINT_REPRODUCIBLE)
      kernelmint_group_shards(${family} ${target} "${architectures}" "${ptxas}" shards)
    endif()
    kernelmint_add_cuda_objects(${library} ${objects} "${shards};${sources}" ${target}
                                "${architectures}" "${ptxas}")
    kernelmint_compile_as(${objects} KERNELMINT_BUILD ${family}_${target} CUDA)
  endif()
  foreach(options IN LISTS KERNELMINT_OPTIONS_${family}_${target})
    set(objects ${library}_${target}_${options})
    set(files ${KERNELMINT_OPTION_SOURCES_${options}_${family}_${target}})
    list(TRANSFORM files PREPEND "${KERNELMINT_GENERATED}/")
    kernelmint_add_cuda_objects(${library} ${objects} "${files}" ${target} "${architectures}" "${ptxas}")
    kernelmint_compile_as(${objects} KERNELMINT_BUILD ${family}_${target} CUDA)
    kernelmint_compile_with_options(${objects} ${options} ${family} ${target})
  endforeach()
  # Static cudart: the library loads if there is no GPU and no driver.
  set_target_properties(${library} PROPERTIES CUDA_RUNTIME_LIBRARY Static LINKER_LANGUAGE CUDA
                        CUDA_ARCHITECTURES OFF)
endfunction()

# Adds objects of nvcc to the library, with a log of ptxas each; C++ files among the sources are
# compiled as such. `target` is their target.
function(kernelmint_add_cuda_objects library objects sources target architectures ptxas)
  add_library(${objects} OBJECT ${sources})
  kernelmint_set_language(${objects})
  target_include_directories(${objects} PRIVATE ${KERNELMINT_INCLUDES})
  target_include_directories(
    ${objects} SYSTEM PRIVATE
    "$<$<COMPILE_LANGUAGE:CXX>:${CMAKE_CUDA_TOOLKIT_INCLUDE_DIRECTORIES}>")
  foreach(option ${KERNELMINT_FLAGS_cuda} $<$<BOOL:${KERNELMINT_DEBUG}>:-G>)
    target_compile_options(${objects} PRIVATE $<$<COMPILE_LANGUAGE:CUDA>:${option}>)
  endforeach()
  if(KERNELMINT_DEBUG)
    target_compile_definitions(${objects} PRIVATE KERNELMINT_DEBUG=1)
  endif()
  set(roots)  # what logs are named relative to
  cmake_path(REPLACE_FILENAME ptxas units OUTPUT_VARIABLE units)
  foreach(root IN LISTS KERNELMINT_GENERATED KERNELMINT_SPEC_DIRS units)
    list(APPEND roots --root "${root}")
  endforeach()
  set(launcher ${KERNELMINT_PYTHON} "${KERNELMINT_CODEGEN}/build/compile_logged.py"
    --log-dir "${ptxas}" ${roots} --target ${target} --)
  if(KERNELMINT_REPRODUCIBLE)
    list(APPEND launcher ${KERNELMINT_PYTHON} "${KERNELMINT_CODEGEN}/build/reproducible.py" ${roots} --)
  endif()
  list(APPEND launcher ${CMAKE_CUDA_COMPILER_LAUNCHER})
  set_target_properties(${objects} PROPERTIES
    CUDA_ARCHITECTURES "${architectures}" JOB_POOL_COMPILE kernels
    CUDA_COMPILER_LAUNCHER "${launcher}")
  target_sources(${library} PRIVATE $<TARGET_OBJECTS:${objects}>)
endfunction()

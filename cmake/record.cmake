# build.json, installed beside the extension, and its hash, compiled into the extension: the sources,
# compilers and flags of this build. An import refuses an extension whose build.json is another's.
file(GLOB_RECURSE _made_of CONFIGURE_DEPENDS runtime/include/*.h runtime/include/*.cuh)
file(GLOB _own CONFIGURE_DEPENDS runtime/src/*.h runtime/src/*.cpp cmake/*.cmake CMakeLists.txt)
list(APPEND _made_of ${_own})
foreach(_dir IN LISTS KERNELMINT_SPEC_DIRS)
  file(GLOB_RECURSE _headers CONFIGURE_DEPENDS "${_dir}/*.h" "${_dir}/*.cuh")
  list(APPEND _made_of ${_headers})
endforeach()

string(TOUPPER "${CMAKE_BUILD_TYPE}" _config)
set(_settings
  --set "generated=${KERNELMINT_FINGERPRINT}"
  --set "c++=${CMAKE_CXX_COMPILER_ID} ${CMAKE_CXX_COMPILER_VERSION}"
  --set "c++ flags=${CMAKE_CXX_FLAGS} ${CMAKE_CXX_FLAGS_${_config}}"
  --set "processor=${CMAKE_SYSTEM_PROCESSOR}")
foreach(_isa IN LISTS KERNELMINT_ISAS)
  list(APPEND _settings --set "${_isa} flags=${KERNELMINT_FLAGS_${_isa}}")
endforeach()
if(KERNELMINT_CUDA AND KERNELMINT_CUDA_TARGETS)
  list(JOIN KERNELMINT_ARCHITECTURES "," _architectures)
  list(APPEND _settings
    --set "nvcc=${CMAKE_CUDA_COMPILER_VERSION}"
    --set "nvcc flags=${CMAKE_CUDA_FLAGS} ${CMAKE_CUDA_FLAGS_${_config}}"
    --set "architectures=${_architectures}"
    --set "debug=${KERNELMINT_DEBUG}")
endif()

set(KERNELMINT_RECORD "${CMAKE_CURRENT_BINARY_DIR}/build_record.cpp")
add_custom_command(
  OUTPUT "${KERNELMINT_RECORD}" "${CMAKE_CURRENT_BINARY_DIR}/build.json"
  COMMAND "${Python_EXECUTABLE}" "${CMAKE_CURRENT_SOURCE_DIR}/tools/build/record.py"
          --json "${CMAKE_CURRENT_BINARY_DIR}/build.json" --cpp "${KERNELMINT_RECORD}"
          --root "${CMAKE_CURRENT_SOURCE_DIR}" ${_settings} -- ${_made_of}
  DEPENDS ${_made_of} tools/build/record.py
  VERBATIM)

# Writes pack.json, which describes a pack, and the C++ that puts its fingerprint into the pack's libraries:
# the hash of the sources, compilers, flags and architectures of this build; and the pack.json of its slices.
function(kernelmint_write_pack_json name folder targets slices)
  file(GLOB_RECURSE made_of CONFIGURE_DEPENDS
       "${KERNELMINT_RUNTIME}/include/*.h" "${KERNELMINT_RUNTIME}/include/*.cuh"
       "${KERNELMINT_RUNTIME}/pack/*" "${KERNELMINT_CMAKE}/*")
  set(specs)
  foreach(dir IN LISTS KERNELMINT_SPEC_DIRS)
    file(GLOB_RECURSE headers FOLLOW_SYMLINKS CONFIGURE_DEPENDS "${dir}/*.h" "${dir}/*.cuh")
    list(APPEND made_of ${headers})
    # An editable install reads the specs' Python where it is written.
    cmake_path(GET dir FILENAME base)
    if(SKBUILD_STATE STREQUAL "editable")
      cmake_path(ABSOLUTE_PATH dir NORMALIZE)
      list(APPEND specs --specs "${base}=${dir}")
    else()
      list(APPEND specs --specs "${base}=${base}")
    endif()
  endforeach()

  string(TOUPPER "${CMAKE_BUILD_TYPE}" config)
  set(settings
    --set "c++=${CMAKE_CXX_COMPILER_ID} ${CMAKE_CXX_COMPILER_VERSION}"
    --set "linker=${CMAKE_CXX_COMPILER_LINKER_ID} ${CMAKE_CXX_COMPILER_LINKER_VERSION}"
    --set "c++ flags=${CMAKE_CXX_FLAGS} ${CMAKE_CXX_FLAGS_${config}}"
    --set "processor=${CMAKE_SYSTEM_PROCESSOR}"
    --set "debug=${KERNELMINT_DEBUG}")
  foreach(isa IN LISTS KERNELMINT_CHOSEN_ISAS)
    list(APPEND settings --set "${isa} flags=${KERNELMINT_FLAGS_${isa}}")
  endforeach()
  if(KERNELMINT_WITH_CUDA)
    list(APPEND settings
      --set "nvcc=${CMAKE_CUDA_COMPILER_VERSION}"
      --set "c++ of nvcc=${CMAKE_CUDA_HOST_COMPILER_ID} ${CMAKE_CUDA_HOST_COMPILER_VERSION}"
      --set "nvcc flags=${CMAKE_CUDA_FLAGS} ${CMAKE_CUDA_FLAGS_${config}}")
  endif()
  kernelmint_fingerprint_builds(builds sources headers)
  list(APPEND made_of ${sources})
  add_custom_command(
    OUTPUT "${folder}/pack.json" "${folder}/fingerprint.cpp"
    COMMAND ${KERNELMINT_PYTHON} "${KERNELMINT_CODEGEN}/build/pack_json.py"
            --name ${name} --folder "${folder}" --root "${CMAKE_CURRENT_SOURCE_DIR}"
            --kernelmint "${KERNELMINT_ROOT}" --manifest "${KERNELMINT_GENERATED}/manifest.json"
            --targets ${targets} --architectures ${KERNELMINT_ARCHITECTURES}
            --isas ${KERNELMINT_CHOSEN_ISAS} ${slices} ${specs} ${settings} ${builds} -- ${made_of} ${ARGN}
    DEPENDS ${made_of} ${headers} ${ARGN} "${KERNELMINT_GENERATED}/manifest.json"
            "${KERNELMINT_CODEGEN}/build/pack_json.py" "${KERNELMINT_CODEGEN}/core/packs.py"
    VERBATIM)
endfunction()

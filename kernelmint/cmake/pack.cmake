# kernelmint_add_pack(NAME GENERATED DIR DESTINATION DIR [NO_SOURCES] [ALSO_MADE_OF FILE ...])
#
# Compiles the generated tree in GENERATED into one library a family, and installs the pack NAME into
# DESTINATION, a folder of the wheel: <package>/_pack. pyproject.toml names it to the runtime:
#
#   [project.entry-points."kernelmint.packs"]
#   NAME = "<package>._pack"
#
# The files of a spec's `build:` are compiled, linked and fingerprinted with it. KERNELMINT_GENERATED_DIR, if
# it is set, names another tree than GENERATED. NO_SOURCES: an installed pack carries no C++ of its
# kernels. ALSO_MADE_OF: further files whose hash belongs to the pack's fingerprint. With KERNELMINT_SLICES
# on, the CUDA kernels are libraries of their own for each architecture, in <package>/_pack/slices/sm90.
macro(kernelmint_add_pack name)
  cmake_parse_arguments(_pack "NO_SOURCES" "GENERATED;DESTINATION" "ALSO_MADE_OF" ${ARGN})
  if(NOT _pack_GENERATED OR NOT _pack_DESTINATION OR _pack_UNPARSED_ARGUMENTS)
    message(FATAL_ERROR "Kernelmint: kernelmint_add_pack(${name} GENERATED DIR DESTINATION DIR "
            "[NO_SOURCES] [ALSO_MADE_OF FILE ...]): got ${ARGN}")
  endif()
  if(NOT "${name}" MATCHES "^[a-z][a-z0-9_]*$")
    message(FATAL_ERROR "Kernelmint: a pack's name is lower-case letters, digits and underscores, "
            "as a Python package's: got ${name}")
  endif()
  if(KERNELMINT_GENERATED_DIR)
    kernelmint_check_folders(KERNELMINT_GENERATED_DIR)
    set(_pack_GENERATED "${KERNELMINT_GENERATED_DIR}")
  endif()
  cmake_path(ABSOLUTE_PATH _pack_GENERATED NORMALIZE OUTPUT_VARIABLE KERNELMINT_GENERATED)
  kernelmint_read_generated(KERNELMINT_GENERATED)
  kernelmint_name_folders("${KERNELMINT_GENERATED}=generated")
  set(KERNELMINT_ARCHITECTURES)
  set(KERNELMINT_WITH_CUDA FALSE)
  if(KERNELMINT_CUDA AND KERNELMINT_CUDA_TARGETS)
    include("${KERNELMINT_CMAKE}/cuda.cmake")
    kernelmint_choose_architectures("${KERNELMINT_CUDA_TARGETS}" KERNELMINT_ARCHITECTURES)
    kernelmint_check_toolkit("${KERNELMINT_ARCHITECTURES}")
    set(KERNELMINT_WITH_CUDA TRUE)
  endif()
  kernelmint_build_pack(${name} "${_pack_DESTINATION}" "${_pack_NO_SOURCES}"
                        "${_pack_ALSO_MADE_OF}")
endmacro()

function(kernelmint_set_language target)
  set_target_properties(${target} PROPERTIES
    CXX_STANDARD ${KERNELMINT_STANDARD} CXX_STANDARD_REQUIRED ON CXX_EXTENSIONS OFF
    CXX_SCAN_FOR_MODULES OFF  # the scanner of Clang is a package of its own
    CUDA_STANDARD ${KERNELMINT_STANDARD} CUDA_STANDARD_REQUIRED ON EXPORT_COMPILE_COMMANDS ON)
  foreach(flag IN LISTS KERNELMINT_FLAGS_host)
    target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:${flag}>)
  endforeach()
  foreach(flag IN LISTS KERNELMINT_FLAGS_cuda_host)
    target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CUDA>:${flag}>)
  endforeach()
endfunction()

function(kernelmint_build_pack name destination no_sources also_made_of)
  set(folder "${CMAKE_CURRENT_BINARY_DIR}/packs/${name}")
  kernelmint_make_job_pool("${folder}")
  set(KERNELMINT_INCLUDES "${KERNELMINT_RUNTIME}/include" ${KERNELMINT_SPEC_DIRS}
      "${KERNELMINT_GENERATED}")
  set(summary)
  set(slices)
  set(of_slices)  # options of pack_json.py
  if(KERNELMINT_SLICES)
    set(slices ${KERNELMINT_ARCHITECTURES})
    list(TRANSFORM slices REPLACE "^([0-9]+).*" "sm\\1")
    list(REMOVE_DUPLICATES slices)
  endif()
  foreach(slice IN LISTS slices)
    set(architectures ${KERNELMINT_ARCHITECTURES})
    string(REPLACE "sm" "" capability ${slice})
    list(FILTER architectures INCLUDE REGEX "^${capability}[af]?$")
    kernelmint_add_libraries(${name}_${slice} "${folder}" slices/${slice} "${architectures}" targets)
    list(JOIN architectures "," architectures)
    list(APPEND of_slices --slice ${slice} "${architectures}" ${targets})
    install(FILES "${folder}/slices/${slice}/pack.json"
            DESTINATION "${destination}/slices/${slice}")
  endforeach()
  if(slices)
    set(KERNELMINT_ARCHITECTURES)
  endif()
  kernelmint_add_libraries(${name} "${folder}" "" "${KERNELMINT_ARCHITECTURES}" targets)
  kernelmint_write_pack_json(${name} "${folder}" "${targets}" "${of_slices}" ${also_made_of})

  install(FILES "${KERNELMINT_GENERATED}/manifest.json" "${folder}/pack.json"
          DESTINATION "${destination}")
  install(DIRECTORY "${KERNELMINT_GENERATED}/python" DESTINATION "${destination}"
          FILES_MATCHING PATTERN "*.py")
  if(NOT SKBUILD_STATE STREQUAL "editable")
    kernelmint_install_specs(${name} "${destination}" "${no_sources}")
  endif()
  list(JOIN summary ", " summary)
  message(STATUS "Kernelmint: building pack ${name}: ${summary}; ${KERNELMINT_JOBS} compilers at a "
          "time")
endfunction()

# Adds a library for each family, and ptxas.csv, to a folder within the pack's, `folder`: the CUDA targets
# that `architectures` suit and, unless it is a slice's, the CPU's. A slice has no library of a family
# without such targets. Sets `built` to the targets, and adds to the caller's `summary`.
function(kernelmint_add_libraries prefix folder part architectures built)
  string(REGEX REPLACE "/$" "" place "${folder}/${part}")
  string(REGEX REPLACE "/$" "" installed "${destination}/${part}")
  set(KERNELMINT_ARCHITECTURES ${architectures})
  set(libraries)
  set(targets)  # family.target of all that is built
  foreach(family IN LISTS KERNELMINT_FAMILIES)
    set(library ${prefix}_${family})
    set(own "${KERNELMINT_GENERATED}/${family}")
    if(part)
      kernelmint_suiting("${KERNELMINT_TARGETS_${family}}" "${architectures}" chosen)
      if(NOT chosen)
        continue()
      endif()
    else()
      set(chosen ${KERNELMINT_TARGETS_${family}})
    endif()
    add_library(${library} MODULE "${KERNELMINT_RUNTIME}/pack/library.cpp" "${folder}/fingerprint.cpp"
                "${own}/family.cpp" "${own}/library.cpp")
    kernelmint_set_language(${library})
    set_target_properties(${library} PROPERTIES PREFIX "" OUTPUT_NAME ${family}
                          LIBRARY_OUTPUT_DIRECTORY "${place}" LINK_DEPENDS
                          "${KERNELMINT_CMAKE}/exports.map")
    target_include_directories(${library} PRIVATE "${KERNELMINT_RUNTIME}/pack"
                               ${KERNELMINT_INCLUDES})
    if(KERNELMINT_WITH_CUDA)
      target_include_directories(${library} SYSTEM PRIVATE ${CMAKE_CUDA_TOOLKIT_INCLUDE_DIRECTORIES})
    endif()
    # Nothing but the entry leaves a library, and it brings its own C++ library: two of them, or one
    # and PyTorch's, must not share a symbol. A missing symbol is an error of the link, not of a call.
    target_link_options(${library} PRIVATE ${KERNELMINT_FLAGS_link}
                        "LINKER:--version-script=${KERNELMINT_CMAKE}/exports.map")
    target_link_libraries(${library} PRIVATE Threads::Threads ${CMAKE_DL_LIBS})
    # A tree that is written anew from here on has another fingerprint: library.cpp compares them.
    set_source_files_properties("${own}/library.cpp" PROPERTIES COMPILE_DEFINITIONS
      KERNELMINT_CONFIGURED_FINGERPRINT="${KERNELMINT_FINGERPRINT_${family}}")
    set(architectures)  # of all its CUDA targets
    foreach(target IN LISTS chosen)
      set(shards ${KERNELMINT_SOURCES_${family}_${target}})
      list(TRANSFORM shards PREPEND "${KERNELMINT_GENERATED}/")
      kernelmint_find_places("${KERNELMINT_BUILD_SOURCES_${family}_${target}}" sources)
      if(NOT target IN_LIST KERNELMINT_CUDA_TARGETS)
        kernelmint_add_cpu_target(${library} ${family} ${target} "${shards}" "${sources}")
      elseif(KERNELMINT_ARCHITECTURES)
        kernelmint_add_cuda_target(${library} ${family} ${target} "${shards}" "${sources}"
                                   "${place}/ptxas" built_for)
        if(NOT built_for)
          continue()
        endif()
        list(APPEND architectures ${built_for})
      else()
        continue()
      endif()
      kernelmint_link_libraries(${library} ${family} ${target})
      target_sources(${library} PRIVATE "${own}/${target}_table.cpp")
      target_compile_definitions(${library} PRIVATE KERNELMINT_TARGET_${target}=1)
      list(APPEND targets ${family}.${target})
      list(APPEND summary "${KERNELMINT_KERNELS_${family}_${target}} ${family}.${target}")
    endforeach()
    kernelmint_add_family_sources(${library} ${family} "${architectures}" "${place}/ptxas")
    list(APPEND libraries ${library})
  endforeach()
  set(${built} "${targets}" PARENT_SCOPE)
  set(summary "${summary}" PARENT_SCOPE)

  # ptxas's figures of every kernel of this build, joined on the key.
  string(TOUPPER "${CMAKE_BUILD_TYPE}" config)
  kernelmint_named(INCLUDE places)
  kernelmint_find_places("${places}" foreign)
  list(TRANSFORM foreign PREPEND "--include=")
  set(times)
  if(KERNELMINT_REPRODUCIBLE)
    set(times --without-times)
  endif()
  add_custom_command(
    OUTPUT "${place}/ptxas.csv"
    COMMAND "${CMAKE_COMMAND}" -E make_directory "${place}/ptxas"
    COMMAND ${KERNELMINT_PYTHON} "${KERNELMINT_CODEGEN}/ptxas/collect.py" "${place}/ptxas"
            --manifest "${KERNELMINT_GENERATED}/manifest.json" --units "${place}/units"
            --csv "${place}/ptxas.csv"
            --nvcc-version "${CMAKE_CUDA_COMPILER_VERSION}"
            "--flags=${CMAKE_CUDA_FLAGS} ${config} debug=$<BOOL:${KERNELMINT_DEBUG}>" ${foreign}
            ${times}
    DEPENDS ${libraries}
    VERBATIM)
  add_custom_target(${prefix}_report ALL DEPENDS "${place}/ptxas.csv")
  install(TARGETS ${libraries} LIBRARY DESTINATION "${installed}")
  install(FILES "${place}/ptxas.csv" DESTINATION "${installed}")
endfunction()

# Sets `suiting` to the CUDA targets, of `targets`, that one of the architectures suits.
function(kernelmint_suiting targets architectures suiting)
  set(chosen)
  foreach(target IN LISTS targets)
    if(target IN_LIST KERNELMINT_CUDA_TARGETS)
      kernelmint_architectures(names ${target} ${architectures})
      if(names)
        list(APPEND chosen ${target})
      endif()
    endif()
  endforeach()
  set(${suiting} "${chosen}" PARENT_SCOPE)
endfunction()

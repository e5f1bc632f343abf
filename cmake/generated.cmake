# The generated tree: checked, then included.
if(NOT EXISTS "${KERNELMINT_GENERATED_DIR}/files.cmake")
  message(FATAL_ERROR "Kernelmint: ${KERNELMINT_GENERATED_DIR} holds no files.cmake. Write the tree "
          "with `python -m codegen regenerate --out ${KERNELMINT_GENERATED_DIR}`.")
endif()

# It waits for a regenerate that is writing the tree.
execute_process(
  COMMAND "${Python_EXECUTABLE}" "${CMAKE_CURRENT_SOURCE_DIR}/codegen/staleness.py"
          "${KERNELMINT_GENERATED_DIR}"
  RESULT_VARIABLE stale OUTPUT_VARIABLE reasons ERROR_VARIABLE reasons)
if(stale)
  message(FATAL_ERROR "Kernelmint: the generated tree is stale.\n${reasons}")
endif()

include("${KERNELMINT_GENERATED_DIR}/files.cmake")
foreach(dir IN LISTS KERNELMINT_SPEC_DIRS)
  kernelmint_check_folders(dir)
endforeach()
# A tree that is written anew from here on has another fingerprint: registry.cpp compares them.
set_source_files_properties("${KERNELMINT_GENERATED_DIR}/registry.cpp" PROPERTIES
  COMPILE_DEFINITIONS KERNELMINT_CONFIGURED_FINGERPRINT="${KERNELMINT_FINGERPRINT}")

# An edited spec or template must not slip into a build unnoticed, nor one of codegen's own modules:
# look again whenever one changes.
set(inputs)
foreach(dir IN LISTS KERNELMINT_SPEC_DIRS)
  file(GLOB_RECURSE specs CONFIGURE_DEPENDS "${dir}/*.yaml")
  list(APPEND inputs ${specs})
endforeach()
file(GLOB_RECURSE own CONFIGURE_DEPENDS "${CMAKE_CURRENT_SOURCE_DIR}/codegen/*.py"
     "${CMAKE_CURRENT_SOURCE_DIR}/codegen/*.mako")
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS
  "${KERNELMINT_GENERATED_DIR}/files.cmake" "${KERNELMINT_GENERATED_DIR}/manifest.json"
  ${inputs} ${own})

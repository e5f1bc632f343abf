# The generated tree: checked, then included.
if(NOT EXISTS "${KERNELMINT_GENERATED_DIR}/files.cmake")
  message(FATAL_ERROR "Kernelmint: ${KERNELMINT_GENERATED_DIR} holds no files.cmake. Write the tree "
          "with `python -m codegen regenerate --out ${KERNELMINT_GENERATED_DIR}`.")
endif()

execute_process(
  COMMAND "${Python_EXECUTABLE}" "${CMAKE_CURRENT_SOURCE_DIR}/codegen/staleness.py"
          "${KERNELMINT_GENERATED_DIR}"
  RESULT_VARIABLE stale OUTPUT_VARIABLE reasons ERROR_VARIABLE reasons)
if(stale)
  message(FATAL_ERROR "Kernelmint: the generated tree is stale.\n${reasons}")
endif()

include("${KERNELMINT_GENERATED_DIR}/files.cmake")

# An edited spec must not slip into a build unnoticed: look again whenever one changes.
set(spec_files)
foreach(dir IN LISTS KERNELMINT_SPEC_DIRS)
  file(GLOB_RECURSE specs CONFIGURE_DEPENDS "${dir}/*.yaml")
  list(APPEND spec_files ${specs})
endforeach()
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS
  "${KERNELMINT_GENERATED_DIR}/files.cmake" "${KERNELMINT_GENERATED_DIR}/manifest.json"
  ${spec_files})

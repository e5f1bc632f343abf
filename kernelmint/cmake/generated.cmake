# Reads files.cmake of the tree in `generated` into the caller's scope. Refuses a stale tree.
macro(kernelmint_read_generated generated)
  kernelmint_check_folders(${generated})
  if(NOT EXISTS "${${generated}}/files.cmake")
    message(FATAL_ERROR "Kernelmint: ${${generated}} holds no files.cmake. Write the tree with "
            "`python -m codegen regenerate --out ${${generated}}`.")
  endif()
  # It waits for a regenerate that is writing the tree.
  execute_process(
    COMMAND ${KERNELMINT_PYTHON} "${KERNELMINT_CODEGEN}/core/staleness.py" "${${generated}}"
    RESULT_VARIABLE _stale OUTPUT_VARIABLE _reasons ERROR_VARIABLE _reasons)
  if(_stale)
    message(FATAL_ERROR "Kernelmint: the generated tree is stale.\n${_reasons}")
  endif()
  include("${${generated}}/files.cmake")

  # An edited spec must not slip into a build unnoticed: look again whenever one changes.
  set(_inputs)
  foreach(_dir IN LISTS KERNELMINT_SPEC_DIRS)
    kernelmint_check_folders(_dir)
    file(GLOB_RECURSE _specs CONFIGURE_DEPENDS "${_dir}/*.yaml")
    list(APPEND _inputs ${_specs})
  endforeach()
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS
    "${${generated}}/files.cmake" "${${generated}}/manifest.json" ${_inputs})
endmacro()

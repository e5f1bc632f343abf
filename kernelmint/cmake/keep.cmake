# Sets the output of a command; if it fails, configuring ends with `refusal` and its reason.
function(kernelmint_run result refusal)
  execute_process(COMMAND ${ARGN} OUTPUT_VARIABLE said OUTPUT_STRIP_TRAILING_WHITESPACE
                  ERROR_VARIABLE reason RESULT_VARIABLE failed)
  if(failed)
    message(FATAL_ERROR "Kernelmint: ${refusal}${reason}")
  endif()
  set(${result} "${said}" PARENT_SCOPE)
endfunction()

# The tools of an isolated build lie in a folder that vanishes with it. If that folder is named in a
# command or a dependency, ninja would compile everything anew at the next install: see keep.py.

# A path that stays, with the content of `source`: itself, or a copy in the build folder under `name`.
function(kernelmint_keep source name result)
  kernelmint_run(kept "${source} cannot be copied into the build folder: "
                 "${Python_EXECUTABLE}" "${KERNELMINT_CODEGEN}/build/keep.py" "${source}"
                 "${CMAKE_BINARY_DIR}/kept/${name}" ${ARGN})
  set(${result} "${kept}" PARENT_SCOPE)
endfunction()

# What a command prints; if it fails, configuring ends with its reason behind `refusal`.
function(kernelmint_run result refusal)
  execute_process(COMMAND ${ARGN} OUTPUT_VARIABLE said OUTPUT_STRIP_TRAILING_WHITESPACE
                  ERROR_VARIABLE reason RESULT_VARIABLE failed)
  if(failed)
    message(FATAL_ERROR "Kernelmint: ${refusal}${reason}")
  endif()
  set(${result} "${said}" PARENT_SCOPE)
endfunction()

# What an isolated build brings along lies in a folder that vanishes with it. If it is named in a
# command or a dependency, ninja would compile everything anew at the next install: see keep.py.

# A path that stays with what is in `source`: itself, or a copy in the build folder under `name`.
function(kernelmint_keep source name result)
  kernelmint_run(kept "${source} cannot be copied into the build folder: "
                 "${Python_EXECUTABLE}" "${KERNELMINT_CODEGEN}/build/keep.py" "${source}"
                 "${CMAKE_BINARY_DIR}/kept/${name}" ${ARGN})
  set(${result} "${kept}" PARENT_SCOPE)
endfunction()

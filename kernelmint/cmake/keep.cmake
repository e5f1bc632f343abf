# What an isolated build brings along lies in a folder that vanishes with it. If it is named in a
# command or a dependency, ninja would compile everything anew at the next install: see keep.py.

# A path that stays with what is in `source`: itself, or a copy in the build folder under `name`.
function(kernelmint_keep source name result)
  execute_process(
    COMMAND "${Python_EXECUTABLE}" "${KERNELMINT_CODEGEN}/build/keep.py" "${source}"
            "${CMAKE_BINARY_DIR}/kept/${name}" ${ARGN}
    OUTPUT_VARIABLE kept ERROR_VARIABLE reason RESULT_VARIABLE failed)
  if(failed)
    message(FATAL_ERROR "Kernelmint: ${source} cannot be copied into the build folder: ${reason}")
  endif()
  set(${result} "${kept}" PARENT_SCOPE)
endfunction()

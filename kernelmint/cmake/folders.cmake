# Refuses folders that CMake or ninja cannot spell: included before project(), which some of them
# would break. (Ninja loses track of headers after a quote or an ampersand, and
# would build stale code.)
function(kernelmint_check_folders)
  foreach(variable IN LISTS ARGN)
    if("${${variable}}" MATCHES "[][\n;\"'`$&\\<>|*?^]")
      message(FATAL_ERROR "Kernelmint: CMake and ninja cannot build if a folder's name holds a "
              "quote, a bracket, a newline or one of ; $ & \\ < > | * ? ^. Rename it, or choose another: "
              "${variable} is ${${variable}}")
    endif()
  endforeach()
endfunction()

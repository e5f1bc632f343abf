# ccache, if present and no other launcher is named: it replays a compiler's output on a hit,
# ptxas's lines included.
find_program(KERNELMINT_CCACHE ccache)
if(KERNELMINT_CCACHE)
  foreach(_language CXX CUDA)
    set(_launcher CMAKE_${_language}_COMPILER_LAUNCHER)
    if(NOT DEFINED ${_launcher} AND NOT DEFINED ENV{${_launcher}})
      set(${_launcher} "${KERNELMINT_CCACHE}")
    endif()
  endforeach()
  message(STATUS "Kernelmint: ccache ${KERNELMINT_CCACHE}")
endif()

# ccache, where present: it replays a compiler's output on a hit, ptxas's lines included.
find_program(KERNELMINT_CCACHE ccache)
if(KERNELMINT_CCACHE)
  set(CMAKE_CXX_COMPILER_LAUNCHER "${KERNELMINT_CCACHE}")
  message(STATUS "Kernelmint: ccache ${KERNELMINT_CCACHE}")
endif()

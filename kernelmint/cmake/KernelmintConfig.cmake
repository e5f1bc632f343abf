# find_package(Kernelmint): kernelmint_add_pack(), which compiles a generated tree into a pack.
# Found through scikit-build-core's entry point `cmake.prefix`.
include("${CMAKE_CURRENT_LIST_DIR}/folders.cmake")    # refuses names that CMake cannot spell
kernelmint_check_folders(CMAKE_CURRENT_SOURCE_DIR CMAKE_CURRENT_BINARY_DIR CMAKE_CURRENT_LIST_DIR)

option(KERNELMINT_CUDA "Compile the CUDA targets" ON)
set(KERNELMINT_GENERATED_DIR "" CACHE PATH
    "The generated tree to build, in place of the one that the project names")
option(KERNELMINT_DEBUG "Device debug information and assertions (-G): slow kernels" OFF)
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release)
endif()

# A rebuild at import must use the ninja that built: another version finds every command changed.
if(CMAKE_GENERATOR MATCHES "Ninja" AND NOT IS_ABSOLUTE "${CMAKE_MAKE_PROGRAM}")
  find_program(KERNELMINT_NINJA "${CMAKE_MAKE_PROGRAM}" REQUIRED)
  set(CMAKE_MAKE_PROGRAM "${KERNELMINT_NINJA}" CACHE FILEPATH "The ninja that built" FORCE)
endif()

find_package(Python 3.10 REQUIRED COMPONENTS Interpreter)
find_package(Threads REQUIRED)

# The package's own folders: as installed, and in a checkout.
cmake_path(GET CMAKE_CURRENT_LIST_DIR PARENT_PATH KERNELMINT_PACKAGE)
cmake_path(GET KERNELMINT_PACKAGE PARENT_PATH KERNELMINT_ROOT)
set(KERNELMINT_CODEGEN "${KERNELMINT_ROOT}/codegen")
include("${CMAKE_CURRENT_LIST_DIR}/keep.cmake")
if(EXISTS "${KERNELMINT_PACKAGE}/include")
  kernelmint_keep("${KERNELMINT_ROOT}/codegen" codegen _codegen)
  kernelmint_keep("${KERNELMINT_PACKAGE}" kernelmint KERNELMINT_PACKAGE --without _pack)
  cmake_path(GET KERNELMINT_PACKAGE PARENT_PATH KERNELMINT_ROOT)
  set(KERNELMINT_RUNTIME "${KERNELMINT_PACKAGE}")
else()
  set(KERNELMINT_RUNTIME "${KERNELMINT_ROOT}/runtime")
endif()
set(KERNELMINT_CMAKE "${KERNELMINT_PACKAGE}/cmake")
set(KERNELMINT_CODEGEN "${KERNELMINT_ROOT}/codegen")
# For scripts of the standard library alone. The interpreter behind an environment's link: it stays,
# and -S keeps an editable install of another checkout out.
file(REAL_PATH "${Python_EXECUTABLE}" KERNELMINT_PYTHON)
list(APPEND KERNELMINT_PYTHON -S)

include("${KERNELMINT_CMAKE}/jobs.cmake")       # a job pool that memory can bear
include("${KERNELMINT_CMAKE}/ccache.cmake")
include("${KERNELMINT_CMAKE}/generated.cmake")  # reads a generated tree; refuses a stale one
include("${KERNELMINT_CMAKE}/flags.cmake")      # what compilers are told
include("${KERNELMINT_CMAKE}/build_settings.cmake")      # what `build:` of a spec says
include("${KERNELMINT_CMAKE}/cpu.cmake")        # the CPU's instruction sets
include("${KERNELMINT_CMAKE}/sources.cmake")    # what a pack carries of its project
include("${KERNELMINT_CMAKE}/pack_json.cmake")     # what a pack is made of: pack.json
include("${KERNELMINT_CMAKE}/pack.cmake")

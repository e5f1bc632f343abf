# CPU targets: each shard is compiled once for every instruction set the compiler has; the runtime
# picks by what the processor has.
include(CheckCXXCompilerFlag)

set(KERNELMINT_ISAS baseline)
if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64)$")
  set(KERNELMINT_FLAGS_avx2 -march=x86-64-v3)
  set(KERNELMINT_FLAGS_avx512 -march=x86-64-v4)
  set(KERNELMINT_FLAGS_amx -march=sapphirerapids)
  foreach(isa avx2 avx512 amx)
    check_cxx_compiler_flag(${KERNELMINT_FLAGS_${isa}} KERNELMINT_HAS_${isa})
    if(KERNELMINT_HAS_${isa})
      list(APPEND KERNELMINT_ISAS ${isa})
    endif()
  endforeach()
endif()

# Adds the shards of a CPU target to the library, one set of objects for each instruction set.
function(kernelmint_add_cpu_target library target sources)
  foreach(isa IN LISTS KERNELMINT_ISAS)
    set(objects ${library}_${target}_${isa})
    add_library(${objects} OBJECT ${sources})
    kernelmint_set_language(${objects})
    target_include_directories(${objects} PRIVATE ${KERNELMINT_INCLUDES})
    target_compile_definitions(${objects} PRIVATE KERNELMINT_ISA=${isa})
    # -Wno-psabi: vectors wider than the baseline's never cross a call that is not inlined.
    target_compile_options(${objects} PRIVATE -O3 ${KERNELMINT_FLAGS_${isa}} -Wno-psabi)
    set_target_properties(${objects} PROPERTIES JOB_POOL_COMPILE kernels)
    target_sources(${library} PRIVATE $<TARGET_OBJECTS:${objects}>)
    target_compile_definitions(${library} PRIVATE KERNELMINT_ISA_${isa})
  endforeach()
endfunction()

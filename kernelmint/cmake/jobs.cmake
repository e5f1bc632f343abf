# A ninja pool for the kernels: one nvcc can take gigabytes, and the processors outnumber them.
# Its size depends on the memory that a compiler took in an earlier build of `folder`.
function(kernelmint_make_job_pool folder)
  kernelmint_run(jobs "" ${KERNELMINT_PYTHON} "${KERNELMINT_CODEGEN}/build/jobs.py" "${folder}/ptxas")
  # Of several packs, the one whose compilers take the most decides.
  get_property(pools GLOBAL PROPERTY JOB_POOLS)
  foreach(pool IN LISTS pools)
    if(pool MATCHES "^kernels=(.*)$" AND CMAKE_MATCH_1 LESS jobs)
      set(jobs ${CMAKE_MATCH_1})
    endif()
  endforeach()
  list(FILTER pools EXCLUDE REGEX "^kernels=")
  set_property(GLOBAL PROPERTY JOB_POOLS ${pools} kernels=${jobs})
  set(KERNELMINT_JOBS ${jobs} PARENT_SCOPE)
endfunction()

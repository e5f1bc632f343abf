# A ninja pool for the kernels: one nvcc can take gigabytes, and the processors outnumber them.
execute_process(COMMAND "${Python_EXECUTABLE}" "${KERNELMINT_TOOLS}/build/jobs.py"
                OUTPUT_VARIABLE KERNELMINT_JOBS OUTPUT_STRIP_TRAILING_WHITESPACE
                RESULT_VARIABLE failed ERROR_VARIABLE reason)
if(failed)
  message(FATAL_ERROR "Kernelmint: ${reason}")
endif()
set_property(GLOBAL APPEND PROPERTY JOB_POOLS kernels=${KERNELMINT_JOBS})

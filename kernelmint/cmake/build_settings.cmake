# What `build:` of a family and of its targets says: files.cmake has it as lists,
# KERNELMINT_FAMILY_BUILD_<what>_<family> and KERNELMINT_BUILD_<what>_<family>_<target>.

# The paths of a list of places; those of packages, package:NAME:PATH:REQUIREMENT, are looked for in
# the Python that configures.
function(kernelmint_find_places places result)
  set(found)
  foreach(place IN LISTS places)
    if(place MATCHES "^package:([^:]*):([^:]*):(.*)$")
      execute_process(
        COMMAND "${Python_EXECUTABLE}" "${KERNELMINT_CODEGEN}/build_paths.py" "${CMAKE_MATCH_1}"
                "${CMAKE_MATCH_2}" "${CMAKE_MATCH_3}"
        OUTPUT_VARIABLE place ERROR_VARIABLE reason RESULT_VARIABLE failed)
      if(failed)
        message(FATAL_ERROR "Kernelmint: ${reason}")
      endif()
      kernelmint_keep("${place}" "${CMAKE_MATCH_1}/${CMAKE_MATCH_2}" place)
    endif()
    list(APPEND found "${place}")
  endforeach()
  set(${result} "${found}" PARENT_SCOPE)
endfunction()

# Compiles `objects` as the lists `prefix`_<what>_`suffix` say; the flags are for `language` alone.
# Foreign headers are system headers: their warnings are not the author's, and Kernelmint's come first.
function(kernelmint_compile_as objects prefix suffix language)
  foreach(flag IN LISTS ${prefix}_FLAGS_${suffix})
    string(REPLACE ">" "$<ANGLE-R>" flag "${flag}")  # or it would end the expression
    target_compile_options(${objects} PRIVATE "$<$<COMPILE_LANGUAGE:${language}>:${flag}>")
  endforeach()
  target_compile_options(${objects} PRIVATE ${${prefix}_DEFINITIONS_${suffix}})
  kernelmint_find_places("${${prefix}_INCLUDE_${suffix}}" include)
  target_include_directories(${objects} SYSTEM PRIVATE ${include})
endfunction()

# Adds C++ files that are compiled once each to the library.
function(kernelmint_add_sources library objects sources prefix suffix)
  if(sources)
    add_library(${objects} OBJECT ${sources})
    kernelmint_set_language(${objects})
    target_include_directories(${objects} PRIVATE ${KERNELMINT_INCLUDES})
    target_compile_definitions(${objects} PRIVATE KERNELMINT_ISA=baseline)
    target_compile_options(${objects} PRIVATE ${KERNELMINT_FLAGS_optimise})
    kernelmint_compile_as(${objects} ${prefix} ${suffix} CXX)
    set_target_properties(${objects} PROPERTIES JOB_POOL_COMPILE kernels)
    target_sources(${library} PRIVATE $<TARGET_OBJECTS:${objects}>)
  endif()
endfunction()

# Adds the sources that a family's own `build:` names, CUDA's for all architectures that its targets
# are compiled for.
function(kernelmint_add_family_sources library family architectures ptxas)
  set(cpp ${KERNELMINT_FAMILY_BUILD_SOURCES_${family}})
  set(cuda ${cpp})
  list(FILTER cpp EXCLUDE REGEX "\\.cu$")
  list(FILTER cuda INCLUDE REGEX "\\.cu$")
  kernelmint_add_sources(${library} ${library}_sources "${cpp}" KERNELMINT_FAMILY_BUILD ${family})
  if(cuda AND architectures)
    list(REMOVE_DUPLICATES architectures)
    kernelmint_add_cuda_objects(${library} ${library}_cuda_sources "${cuda}" cuda
                                "${architectures}" "${ptxas}")
    kernelmint_compile_as(${library}_cuda_sources KERNELMINT_FAMILY_BUILD ${family} CUDA)
  endif()
endfunction()

# Links a family's library with what a target's `build:` names, the family's included.
function(kernelmint_link_libraries library family target)
  kernelmint_find_places("${KERNELMINT_BUILD_LIBRARIES_${family}_${target}}" libraries)
  target_link_libraries(${library} PRIVATE ${libraries})
endfunction()

# What all families and targets name under `what`, once each.
function(kernelmint_named what result)
  set(named)
  foreach(family IN LISTS KERNELMINT_FAMILIES)
    list(APPEND named ${KERNELMINT_FAMILY_BUILD_${what}_${family}})
    foreach(target IN LISTS KERNELMINT_TARGETS_${family})
      list(APPEND named ${KERNELMINT_BUILD_${what}_${family}_${target}})
    endforeach()
  endforeach()
  list(REMOVE_DUPLICATES named)
  set(${result} "${named}" PARENT_SCOPE)
endfunction()

# What `build:` brings into a pack's fingerprint: options of pack_json.py, the files that are sources, and
# those that are read besides. A folder of foreign headers counts as a whole.
function(kernelmint_fingerprint_builds options sources read)
  set(listed)
  foreach(family IN LISTS KERNELMINT_FAMILIES)
    foreach(target IN LISTS KERNELMINT_TARGETS_${family})
      foreach(what FLAGS DEFINITIONS LIBRARIES)
        set(values ${KERNELMINT_BUILD_${what}_${family}_${target}})
        if(what STREQUAL "LIBRARIES")
          list(FILTER values EXCLUDE REGEX "/")  # files count by what they hold
        endif()
        if(values)
          string(TOLOWER "${what}" name)
          list(TRANSFORM values REPLACE "^SHELL:" "")
          list(JOIN values " " text)
          list(APPEND listed --set "${family}.${target} ${name}=${text}")
        endif()
      endforeach()
    endforeach()
  endforeach()
  set(headers)
  kernelmint_named(INCLUDE places)
  foreach(place IN LISTS places)
    kernelmint_find_places("${place}" folder)
    file(GLOB_RECURSE within CONFIGURE_DEPENDS "${folder}/*")
    list(APPEND headers ${within})
    list(APPEND listed --headers "${place}" "${folder}")
  endforeach()
  kernelmint_named(SOURCES files)
  kernelmint_named(LIBRARIES libraries)
  list(FILTER libraries INCLUDE REGEX "/")
  kernelmint_find_places("${libraries}" libraries)
  set(${options} "${listed}" PARENT_SCOPE)
  set(${sources} ${files} ${libraries} PARENT_SCOPE)
  set(${read} "${headers}" PARENT_SCOPE)
endfunction()

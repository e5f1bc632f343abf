# Files that a pack carries of its project: the specs with their headers, fronts and references, by which
# keys are explained and kernels built on demand. Other files beside them (notes, caches, an .env) stay
# where they are.

set(KERNELMINT_SHIPPED_SPECS *.py *.yaml *.yml *.csv LICEN[CS]E* NOTICE* COPYING*)
set(KERNELMINT_SHIPPED_SOURCES *.h *.hh *.hpp *.hxx *.cuh *.inl *.inc *.ipp *.tcc *.c *.cc *.cpp *.cxx *.cu)

# Installs the files of a folder of specs that match one of these patterns. Files and folders may be links,
# which install(DIRECTORY) would install as links.
function(kernelmint_install_files specs destination patterns)
  list(TRANSFORM patterns REPLACE "(.+)" "[==[${specs}/\\1]==]")
  list(JOIN patterns " " patterns)
  cmake_path(GET specs FILENAME base)
  install(CODE "
    set(specs [==[${specs}]==])
    file(GLOB_RECURSE files FOLLOW_SYMLINKS RELATIVE \"\${specs}\" ${patterns})
    list(FILTER files EXCLUDE REGEX [==[(^|/)(test_[^/]*\\.py$|__pycache__/|\\.)]==])
    foreach(file IN LISTS files)
      cmake_path(GET file PARENT_PATH folder)
      cmake_path(GET file FILENAME name)
      file(REAL_PATH \"\${specs}/\${file}\" real)
      file(INSTALL DESTINATION \"\${CMAKE_INSTALL_PREFIX}/${destination}/${base}/\${folder}\"
           TYPE FILE FILES \"\${real}\" RENAME \"\${name}\")
    endforeach()")
endfunction()

# Installs the folders of specs, and the files that `build:` names, in the same places beside them.
function(kernelmint_install_specs name destination no_sources)
  set(shipped ${KERNELMINT_SHIPPED_SPECS})
  if(NOT no_sources)
    list(APPEND shipped ${KERNELMINT_SHIPPED_SOURCES})
  endif()
  foreach(specs IN LISTS KERNELMINT_SPEC_DIRS)
    kernelmint_install_files("${specs}" "${destination}" "${shipped}")
  endforeach()
  list(TRANSFORM shipped PREPEND "PATTERN;")
  set(never PATTERN "test_*.py" EXCLUDE PATTERN "__pycache__" EXCLUDE PATTERN ".*" EXCLUDE)
  if(no_sources)
    return()
  endif()
  foreach(what INCLUDE LIBRARIES)  # sources lie among the specs
    kernelmint_named(${what} places)
    foreach(place IN LISTS places)
      string(REGEX REPLACE "^excerpt:[^:]*:[^:]*:[^:]*:" "" place "${place}")  # the file that it is of
      foreach(specs IN LISTS KERNELMINT_SPEC_DIRS)
        string(FIND "${place}" "${specs}/" at)
        if(NOT at EQUAL 0)  # a package's, a library's name, or another folder's
          continue()
        endif()
        cmake_path(NORMAL_PATH place OUTPUT_VARIABLE path)
        cmake_path(GET specs PARENT_PATH project)
        cmake_path(RELATIVE_PATH path BASE_DIRECTORY "${project}")
        cmake_path(GET path PARENT_PATH folder)
        if(path MATCHES "^\\.\\./")
          message(WARNING "Kernelmint: pack ${name} does not carry ${place}, which lies outside "
                  "${project}: its kernels cannot be built on demand if that is not")
        elseif(IS_DIRECTORY "${place}")
          # Foreign headers may have no suffix.
          install(DIRECTORY "${place}/" DESTINATION "${destination}/${path}"
                  FILES_MATCHING ${shipped} REGEX "/[^./]+$" ${never})
        else()
          install(FILES "${place}" DESTINATION "${destination}/${folder}")
        endif()
      endforeach()
    endforeach()
  endforeach()
endfunction()

# What makes builds of this tree fast and changes nothing in what they make. None of it is asked of users who add this
# tree to theirs.
if(NOT PROJECT_IS_TOP_LEVEL)
  return()
endif()

# ccache, where it is installed and no other launcher was chosen. Paths in what it compares and in debug information are
# relative to the source folder, so that one clone finds what another has compiled, precompiled headers included (GCC's
# header file is compared instead of what went into it, hence what ccache calls sloppiness). Not ccache's depend mode: a
# unity source names its parts by absolute paths, which are alike in two clones only after preprocessing.
find_program(COHORT_CCACHE ccache)
if(COHORT_CCACHE AND NOT DEFINED CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_CXX_COMPILER_LAUNCHER
      ${CMAKE_COMMAND} -E env CCACHE_BASEDIR=${PROJECT_SOURCE_DIR} CCACHE_NOHASHDIR=1
      CCACHE_SLOPPINESS=pch_defines,time_macros,include_file_mtime,include_file_ctime ${COHORT_CCACHE})
  add_compile_options(-ffile-prefix-map=${PROJECT_SOURCE_DIR}=.)
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    add_compile_options(-fpch-preprocess)
  endif()
endif()

# A twentieth of GCC's time goes into collecting garbage: not before there is half a GiB of it.
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  add_compile_options(--param=ggc-min-heapsize=524288)
endif()

# Some 70 programs are linked with the whole library in them, so a fast linker is worth having.
find_program(COHORT_MOLD mold)
if(COHORT_MOLD AND NOT CMAKE_CROSSCOMPILING)
  add_link_options(-fuse-ld=mold)
endif()

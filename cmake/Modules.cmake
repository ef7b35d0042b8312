# Engines are loaded at run time, each as a module of its own, so that one build serves machines that have the engine's
# library and machines that do not.
set(COHORT_MODULE_OUTPUT_DIR ${PROJECT_BINARY_DIR}/lib/cohort)
set(COHORT_MODULE_INSTALL_DIR ${CMAKE_INSTALL_LIBDIR}/cohort)
# Where the library and programs of this tree look for them.
list(APPEND CMAKE_BUILD_RPATH ${COHORT_MODULE_OUTPUT_DIR})

# cohort_add_module(ENGINE SOURCES a.cpp ... [INCLUDES ...] [LIBRARIES ...])
# A module sees the library's headers but does not link it: what it is given is abstract, what it throws std::exception.
function(cohort_add_module engine)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "SOURCES;INCLUDES;LIBRARIES")
  set(target cohort_${engine})
  add_library(${target} MODULE ${arg_SOURCES})
  target_include_directories(${target} PRIVATE ${PROJECT_SOURCE_DIR}/src ${PROJECT_SOURCE_DIR}/include
                                               ${PROJECT_BINARY_DIR}/include)
  target_include_directories(${target} SYSTEM PRIVATE ${arg_INCLUDES})
  target_link_libraries(${target} PRIVATE cohort_options Threads::Threads ${arg_LIBRARIES})
  set_target_properties(${target} PROPERTIES LIBRARY_OUTPUT_DIRECTORY ${COHORT_MODULE_OUTPUT_DIR})
  install(TARGETS ${target} LIBRARY DESTINATION ${COHORT_MODULE_INSTALL_DIR} COMPONENT runtime)
endfunction()

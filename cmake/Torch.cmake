# libtorch, where there is one: cohort_libtorch is what our own targets link. Its headers are system headers, so that
# our warnings are about our code.
#
# COHORT_TORCH: AUTO (build the torch layer where libtorch is found), ON (it must be there) or OFF.
set(COHORT_TORCH AUTO CACHE STRING "Build the libtorch layer: AUTO, ON or OFF")
set_property(CACHE COHORT_TORCH PROPERTY STRINGS AUTO ON OFF)
set(COHORT_HAS_TORCH OFF)
if(COHORT_TORCH STREQUAL "OFF")
  return()
endif()
if(COHORT_TORCH STREQUAL "ON")
  find_package(Torch 1.13 REQUIRED)
else()
  find_package(Torch 1.13 QUIET)
endif()
if(NOT Torch_FOUND)
  message(STATUS "Torch layer: not built, since there is no libtorch (libtorch-dev)")
  return()
endif()
set(COHORT_HAS_TORCH ON)
message(STATUS "Torch layer: libtorch ${Torch_VERSION}")
add_library(cohort_libtorch INTERFACE)
target_link_libraries(cohort_libtorch INTERFACE ${TORCH_LIBRARIES})
target_include_directories(cohort_libtorch SYSTEM INTERFACE ${TORCH_INCLUDE_DIRS})

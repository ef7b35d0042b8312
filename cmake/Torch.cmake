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

# CUDA graphs, for replays of captured steps: libtorch's own, where it has been built with CUDA and CUDA's headers are there.
set(COHORT_HAS_CUDA_GRAPHS OFF)
if(TARGET torch_cuda)
  find_path(COHORT_TORCH_CUDA_HEADERS ATen/cuda/CUDAGraph.h PATHS ${TORCH_INCLUDE_DIRS} NO_DEFAULT_PATH)
  find_path(COHORT_CUDA_HEADERS cuda_runtime_api.h HINTS ${CUDAToolkit_INCLUDE_DIRS} ${CUDA_INCLUDE_DIRS}
                                                         ${CUDA_TOOLKIT_ROOT_DIR}/include /usr/local/cuda/include)
  if(COHORT_TORCH_CUDA_HEADERS AND COHORT_CUDA_HEADERS)
    set(COHORT_HAS_CUDA_GRAPHS ON)
  else()
    message(STATUS "Torch layer: no CUDA graphs, since CUDA's headers are missing (its toolkit)")
  endif()
endif()

# SPDX-License-Identifier: BSD-3-Clause
# What a portfile calls of vcpkg, as far as it can be done without vcpkg: the build is real, in one configuration. What
# vcpkg does to files afterwards is left out, but the files must be there.
#
#   cmake -DPORTFILE=... -DPACKAGES=FOLDER -DFEATURES=a,b -DBUILD=ON|OFF -P vcpkg_functions.cmake
cmake_minimum_required(VERSION 3.22)

get_filename_component(PORT_DIR ${PORTFILE} DIRECTORY)
get_filename_component(PORT ${PORT_DIR} NAME)
string(REPLACE "," ";" FEATURES "${FEATURES}")
set(CURRENT_PACKAGES_DIR ${PACKAGES})

function(run)
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE status OUTPUT_VARIABLE output ERROR_VARIABLE output)
  message(STATUS "${output}")
  if(NOT status EQUAL 0)
    message(FATAL_ERROR "failed: ${ARGN}")
  endif()
  if(output MATCHES "Manually-specified variables were not used")
    message(FATAL_ERROR "the portfile sets variables that the build does not have")
  endif()
endfunction()

function(needed path)
  if(BUILD AND NOT EXISTS ${path})
    message(FATAL_ERROR "the build has not installed ${path}")
  endif()
endfunction()

function(vcpkg_check_features)
  cmake_parse_arguments(PARSE_ARGV 0 arg "" "OUT_FEATURE_OPTIONS" "FEATURES")
  set(options "")
  while(arg_FEATURES)
    list(POP_FRONT arg_FEATURES feature variable)
    if(feature IN_LIST FEATURES)
      list(APPEND options -D${variable}=ON)
    else()
      list(APPEND options -D${variable}=OFF)
    endif()
  endwhile()
  set(${arg_OUT_FEATURE_OPTIONS} ${options} PARENT_SCOPE)
endfunction()

function(vcpkg_find_acquire_program name)
  find_program(${name}_PROGRAM pkg-config REQUIRED)
  set(${name} ${${name}_PROGRAM} PARENT_SCOPE)
endfunction()

function(vcpkg_cmake_configure)
  cmake_parse_arguments(PARSE_ARGV 0 arg "" "SOURCE_PATH" "OPTIONS")
  run(${CMAKE_COMMAND} -S ${arg_SOURCE_PATH} -B ${CURRENT_PACKAGES_DIR}/build -G Ninja -DCMAKE_BUILD_TYPE=Release
      -DCMAKE_UNITY_BUILD=ON -DCMAKE_INSTALL_LIBDIR=lib -DCMAKE_INSTALL_PREFIX=${CURRENT_PACKAGES_DIR} ${arg_OPTIONS})
endfunction()

function(vcpkg_cmake_install)
  if(BUILD)
    run(${CMAKE_COMMAND} --build ${CURRENT_PACKAGES_DIR}/build -j2)
    run(${CMAKE_COMMAND} --install ${CURRENT_PACKAGES_DIR}/build)
  endif()
endfunction()

function(vcpkg_cmake_config_fixup)
  cmake_parse_arguments(PARSE_ARGV 0 arg "" "CONFIG_PATH" "")
  needed(${CURRENT_PACKAGES_DIR}/${arg_CONFIG_PATH}/${PORT}Config.cmake)
endfunction()

function(vcpkg_fixup_pkgconfig)
  needed(${CURRENT_PACKAGES_DIR}/lib/pkgconfig/${PORT}.pc)
endfunction()

function(vcpkg_install_copyright)
  cmake_parse_arguments(PARSE_ARGV 0 arg "" "" "FILE_LIST")
  if(NOT EXISTS ${arg_FILE_LIST})
    message(FATAL_ERROR "there is no ${arg_FILE_LIST}")
  endif()
endfunction()

include(${PORTFILE})
if("tools" IN_LIST FEATURES)
  needed(${CURRENT_PACKAGES_DIR}/tools/${PORT}/cohort)
endif()

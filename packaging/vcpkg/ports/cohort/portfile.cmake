# SPDX-License-Identifier: BSD-3-Clause
# vcpkg install cohort --overlay-ports=packaging/vcpkg/ports: builds the source tree that this file is part of.
get_filename_component(SOURCE_PATH "${CMAKE_CURRENT_LIST_DIR}/../../../.." ABSOLUTE)

vcpkg_check_features(
  OUT_FEATURE_OPTIONS FEATURE_OPTIONS
  FEATURES
    tools COHORT_TOOLS
    torch COHORT_TORCH
)
if(NOT "gloo" IN_LIST FEATURES)
  # A Gloo of the host is not looked for.
  list(APPEND FEATURE_OPTIONS -DGLOO_LIBRARY=OFF)
endif()
# MPI is the host's where pkg-config knows one: a program must use the MPI that its cluster starts it with.
vcpkg_find_acquire_program(PKGCONFIG)

vcpkg_cmake_configure(
  SOURCE_PATH "${SOURCE_PATH}"
  OPTIONS
    ${FEATURE_OPTIONS}
    -DCMAKE_INSTALL_BINDIR=tools/${PORT}
    -DCOHORT_EXAMPLES=OFF
    -DCOHORT_PYTHON=OFF
    -DCOHORT_TESTS=OFF
    -DCOHORT_WERROR=OFF
    "-DPKG_CONFIG_EXECUTABLE=${PKGCONFIG}"
)
vcpkg_cmake_install()
vcpkg_cmake_config_fixup(CONFIG_PATH lib/cmake/cohort)
vcpkg_fixup_pkgconfig()

file(REMOVE_RECURSE
  "${CURRENT_PACKAGES_DIR}/debug/include"
  "${CURRENT_PACKAGES_DIR}/debug/share"
  "${CURRENT_PACKAGES_DIR}/debug/tools"
)
vcpkg_install_copyright(FILE_LIST "${SOURCE_PATH}/LICENSE")

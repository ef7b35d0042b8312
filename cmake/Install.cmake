# What `cmake --install` puts where: library, headers, the CMake package (find_package(cohort)), cohort.pc and
# cohort-torch.pc. Components, for packages that want a part (`cmake --install DIR --component NAME`): runtime (the
# library and its engines), torch, python, tool and development.
include(CMakePackageConfigHelpers)

set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/cohort)

install(TARGETS cohort EXPORT cohortTargets
        LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT runtime NAMELINK_COMPONENT development
        ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT development)
if(COHORT_TOOLS AND NOT IS_ABSOLUTE ${CMAKE_INSTALL_BINDIR} AND NOT IS_ABSOLUTE ${CMAKE_INSTALL_LIBDIR})
  # The command finds its modules wherever the two are moved together.
  file(RELATIVE_PATH bin_to_lib /${CMAKE_INSTALL_BINDIR} /${CMAKE_INSTALL_LIBDIR})
  set_target_properties(cohort_tool PROPERTIES INSTALL_RPATH "$ORIGIN/${bin_to_lib}/cohort")
endif()
install(DIRECTORY include/cohort ${PROJECT_BINARY_DIR}/include/cohort DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}
        COMPONENT development FILES_MATCHING PATTERN "*.h")

install(EXPORT cohortTargets NAMESPACE cohort:: DESTINATION ${package_dir} COMPONENT development)
if(COHORT_HAS_TORCH)
  # Apart, since whoever does not ask for it needs no libtorch.
  install(TARGETS cohort_torch EXPORT cohortTorchTargets
          LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT torch NAMELINK_COMPONENT development
          ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT development)
  install(EXPORT cohortTorchTargets NAMESPACE cohort:: DESTINATION ${package_dir} COMPONENT development)
endif()
configure_package_config_file(cmake/cohortConfig.cmake.in ${PROJECT_BINARY_DIR}/cohortConfig.cmake
                              INSTALL_DESTINATION ${package_dir} NO_SET_AND_CHECK_MACRO)
write_basic_package_version_file(${PROJECT_BINARY_DIR}/cohortConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/cohortConfig.cmake ${PROJECT_BINARY_DIR}/cohortConfigVersion.cmake
        DESTINATION ${package_dir} COMPONENT development)

# Relative to the .pc file where possible, so that an installation can be moved.
if(IS_ABSOLUTE ${CMAKE_INSTALL_LIBDIR} OR IS_ABSOLUTE ${CMAKE_INSTALL_INCLUDEDIR})
  set(pc_prefix ${CMAKE_INSTALL_PREFIX})
  set(pc_libdir ${CMAKE_INSTALL_FULL_LIBDIR})
  set(pc_includedir ${CMAKE_INSTALL_FULL_INCLUDEDIR})
else()
  file(RELATIVE_PATH up /${CMAKE_INSTALL_LIBDIR}/pkgconfig /)
  string(REGEX REPLACE "/$" "" up ${up})
  set(pc_prefix "\${pcfiledir}/${up}")
  set(pc_libdir "\${prefix}/${CMAKE_INSTALL_LIBDIR}")
  set(pc_includedir "\${prefix}/${CMAKE_INSTALL_INCLUDEDIR}")
endif()
if(BUILD_SHARED_LIBS)
  set(pc_requires "")
else()
  set(pc_requires "openssl >= 3.0, fmt")
endif()
configure_file(cmake/cohort.pc.in ${PROJECT_BINARY_DIR}/cohort.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/cohort.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig COMPONENT development)

if(COHORT_HAS_TORCH)
  # libtorch has no .pc file of its own, so this one names what was found when Cohort was configured.
  get_filename_component(torch_libdir ${TORCH_LIBRARY} DIRECTORY)
  set(pc_torch_libs "-L${torch_libdir} -ltorch -ltorch_cpu -lc10")
  if(TARGET torch_cuda)
    string(APPEND pc_torch_libs " -ltorch_cuda -lc10_cuda")
  endif()
  list(TRANSFORM TORCH_INCLUDE_DIRS PREPEND "-I" OUTPUT_VARIABLE pc_torch_cflags)
  string(JOIN " " pc_torch_cflags ${pc_torch_cflags} ${TORCH_CXX_FLAGS})
  configure_file(cmake/cohort-torch.pc.in ${PROJECT_BINARY_DIR}/cohort-torch.pc @ONLY)
  install(FILES ${PROJECT_BINARY_DIR}/cohort-torch.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig
          COMPONENT development)
endif()

find_package(nlohmann_json REQUIRED)
cohort_add_test(doctor_tests SOURCES ${CMAKE_CURRENT_LIST_DIR}/doctor_test.cpp LIBRARIES nlohmann_json::nlohmann_json)
target_compile_definitions(doctor_tests PRIVATE COHORT_TOOL="$<TARGET_FILE:cohort_tool>")
add_dependencies(doctor_tests cohort_tool)

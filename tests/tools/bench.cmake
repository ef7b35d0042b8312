cohort_add_test(bench_tests SOURCES launched.cpp bench_run_test.cpp)
target_compile_definitions(bench_tests PRIVATE COHORT_TOOL="$<TARGET_FILE:cohort_tool>")
add_dependencies(bench_tests cohort_tool)

cohort_add_test(
  bench_parts_tests
  SOURCES
  bench_command_test.cpp
  bench_comparison_test.cpp
  bench_contestant_test.cpp
  bench_flags_test.cpp
  bench_measure_test.cpp
  bench_pattern_test.cpp
  bench_peers_test.cpp
  bench_plot_test.cpp
  bench_sizes_test.cpp
  bench_statistics_test.cpp
  bench_table_test.cpp
  ${TOOL_FOLDER}/guard.cpp
  ${TOOL_FOLDER}/process.cpp
  ${TOOL_FOLDER}/rank_environment.cpp
  LIBRARIES
  cohort_bench_compare
  CLI11::CLI11)

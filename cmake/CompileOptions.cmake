# What every target of ours is compiled with; not exported to users.
add_library(cohort_options INTERFACE)
target_compile_features(cohort_options INTERFACE cxx_std_20)
target_compile_options(cohort_options INTERFACE -Wall -Wextra -Wshadow -Wconversion -Wnon-virtual-dtor
                                                $<$<BOOL:${COHORT_WERROR}>:-Werror>)

# Hardening; _FORTIFY_SOURCE needs optimisation and does not go with sanitizers.
target_compile_options(cohort_options INTERFACE -fstack-protector-strong)
target_link_options(cohort_options INTERFACE -Wl,-z,relro,-z,now)
if(NOT COHORT_SANITIZE AND NOT COHORT_FUZZ)
  set(optimised $<NOT:$<OR:$<CONFIG:Debug>,$<BOOL:$<TARGET_PROPERTY:COHORT_UNOPTIMISED>>>>)
  target_compile_options(cohort_options INTERFACE $<${optimised}:-U_FORTIFY_SOURCE> $<${optimised}:-D_FORTIFY_SOURCE=3>)
endif()

# cohort_unoptimised(TARGET [HEADERS]): for tests and examples. That they compile soon matters more than how fast they are:
# it is the library under them that computes. HEADERS: shared with others, see below.
# Undefined behaviour is looked for in the library alone, unless everything is (check-long).
set(unoptimised_options -O0 $<$<NOT:$<CONFIG:Debug>>:-g1>)
if(COHORT_QUICK_TESTS AND COHORT_SANITIZE STREQUAL "address")
  list(APPEND unoptimised_options -fno-sanitize=undefined)
endif()
target_compile_options(cohort_options
                       INTERFACE "$<$<BOOL:$<TARGET_PROPERTY:COHORT_UNOPTIMISED>>:${unoptimised_options}>")
# libstdc++ then checks what it is called with: an empty optional that is read, an index out of range.
set(checks_library $<OR:$<CONFIG:Debug>,$<BOOL:$<TARGET_PROPERTY:COHORT_UNOPTIMISED>>,$<BOOL:${COHORT_SANITIZE}>>)
target_compile_definitions(cohort_options INTERFACE $<${checks_library}:_GLIBCXX_ASSERTIONS>)
function(cohort_unoptimised target)
  set_target_properties(${target} PROPERTIES COHORT_UNOPTIMISED ON)
  if(CMAKE_UNITY_BUILD AND ARGC GREATER 1)
    target_precompile_headers(${target} REUSE_FROM ${ARGV1})
  endif()
endfunction()

# cohort_precompile(NAME LIBRARIES ... HEADERS ...): reads headers once for all unoptimised targets that name it, where
# sources are compiled together. In the preset debug each source still has to include what it uses. An executable, since
# the flags must be those of one.
function(cohort_precompile name)
  if(NOT CMAKE_UNITY_BUILD)
    return()
  endif()
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "LIBRARIES;HEADERS")
  file(CONFIGURE OUTPUT ${name}.cpp CONTENT "int main() {}\n")
  add_executable(${name} EXCLUDE_FROM_ALL ${CMAKE_CURRENT_BINARY_DIR}/${name}.cpp)
  cohort_unoptimised(${name})
  target_link_libraries(${name} PRIVATE cohort_options ${arg_LIBRARIES})
  target_precompile_headers(${name} PRIVATE ${arg_HEADERS})
  # A precompiled header has checksums of the headers in it, by which GCC knows what has been read already (#pragma once).
  # To ccache a header in which only a comment has changed looks the same, and it would find the precompiled one of before,
  # with which nothing compiles: for our own headers it compares the text.
  if(arg_HEADERS MATCHES "<cohort/" AND CMAKE_CXX_COMPILER_LAUNCHER MATCHES "ccache")
    file(GLOB_RECURSE headers CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/include/*.h)
    list(JOIN headers ":" headers)
    set(launcher ${CMAKE_CXX_COMPILER_LAUNCHER})
    list(INSERT launcher 3 CCACHE_EXTRAFILES=${headers})
    set_target_properties(${name} PROPERTIES CXX_COMPILER_LAUNCHER "${launcher}")
  endif()
endfunction()

set(CMAKE_CXX_VISIBILITY_PRESET hidden)
set(CMAKE_VISIBILITY_INLINES_HIDDEN ON)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)

# For the whole build, dependencies excepted: a sanitizer must see every one of our translation units.
if(COHORT_FUZZ)
  if(NOT CMAKE_CXX_COMPILER_ID MATCHES "Clang")
    message(FATAL_ERROR "COHORT_FUZZ needs clang (-DCMAKE_CXX_COMPILER=clang++-14): libFuzzer is part of it")
  endif()
  add_compile_options(-fsanitize=fuzzer-no-link,address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer)
  add_link_options(-fsanitize=address,undefined)
endif()
if(COHORT_SANITIZE STREQUAL "address")
  add_compile_options(-fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer)
  add_link_options(-fsanitize=address,undefined)
elseif(COHORT_SANITIZE STREQUAL "thread")
  add_compile_options(-fsanitize=thread -fno-omit-frame-pointer)
  add_link_options(-fsanitize=thread)
elseif(COHORT_SANITIZE)
  message(FATAL_ERROR "COHORT_SANITIZE is \"${COHORT_SANITIZE}\": address or thread")
endif()

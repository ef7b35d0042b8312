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

// SPDX-License-Identifier: BSD-3-Clause
//
// Options and suppressions of ThreadSanitizer for all tests.

extern "C" {

/// An exception in a Work is shared between the thread that threw it and those that wait. Its reference count is inside
/// libstdc++.so, which is not instrumented, so its last owner seems to race with the others. The last owner is either
/// an exception_ptr that is destroyed or the end of a catch block, whose frames have no names in the report; hence the
/// destructors.
///
/// A name look-up, which cannot be interrupted, may still be running at exit (socket.cpp) and end at that moment.
__attribute__((visibility("default"))) const char* __tsan_default_suppressions();
const char* __tsan_default_suppressions() {  // NOLINT(bugprone-reserved-identifier)
  return "race:std::__exception_ptr::exception_ptr::_M_release\n"
         "race:__cxa_end_catch\n"
         "race:__cxa_free_exception\n"
         "race:std::runtime_error::~runtime_error\n"
         "race:cohort::Error::~Error\n"
         "thread:cohort::StoreConnection::StoreConnection\n";
}

#ifdef COHORT_TEST_OF_TORCH
/// libtorch is not instrumented: how it counts references and guards its memory is not seen. Accesses that it makes
/// through memcpy, free and the like are ignored; those of our code are not.
__attribute__((visibility("default"))) const char* __tsan_default_options();
const char* __tsan_default_options() {  // NOLINT(bugprone-reserved-identifier)
  return "ignore_noninstrumented_modules=1";
}
#endif
}

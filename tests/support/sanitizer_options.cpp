// SPDX-License-Identifier: BSD-3-Clause
//
// What thread sanitizer has to know of every test.

extern "C" {

/// An exception kept in a Work is shared between the thread that threw it and those that wait. The count of its owners
/// is kept inside libstdc++.so, which is not instrumented, so its last owner seems to race with the others: be that an
/// exception_ptr that goes, or the end of a catch block (whose own frames have no names there: hence the destructors).
///
/// A name look-up that nothing interrupts may still run at exit (socket.cpp), and end just then.
__attribute__((visibility("default"))) const char* __tsan_default_suppressions();
const char* __tsan_default_suppressions() {  // NOLINT(bugprone-reserved-identifier)
  return "race:std::__exception_ptr::exception_ptr::_M_release\n"
         "race:__cxa_end_catch\n"
         "race:__cxa_free_exception\n"
         "race:std::runtime_error::~runtime_error\n"
         "race:cohort::Error::~Error\n"
         "thread:cohort::StoreConnection::StoreConnection\n";
}
}

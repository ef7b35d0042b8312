// SPDX-License-Identifier: BSD-3-Clause
//
// What thread sanitizer has to know of every test.

extern "C" {

/// An exception kept in a Work is shared between the thread that threw it and those that wait. The count of its owners
/// is kept inside libstdc++.so, which is not instrumented, so its last owner seems to race with the others.
__attribute__((visibility("default"))) const char* __tsan_default_suppressions();
const char* __tsan_default_suppressions() {  // NOLINT(bugprone-reserved-identifier)
  return "race:std::__exception_ptr::exception_ptr::_M_release\n";
}
}

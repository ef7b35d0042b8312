// SPDX-License-Identifier: BSD-3-Clause
//
// What the sanitizers have to know of every test.

extern "C" {

/// Asking for more memory than there is must end in an error of ours, not in one of the sanitizer's.
const char* __asan_default_options();
const char* __asan_default_options() {  // NOLINT(bugprone-reserved-identifier): the sanitizer's name
  return "allocator_may_return_null=1";
}
const char* __tsan_default_options();
const char* __tsan_default_options() {  // NOLINT(bugprone-reserved-identifier)
  return "allocator_may_return_null=1";
}

/// An exception kept in a Work is shared between the thread that threw it and those that wait. The count of its owners
/// is kept inside libstdc++.so, which is not instrumented, so its last owner seems to race with the others.
const char* __tsan_default_suppressions();
const char* __tsan_default_suppressions() {  // NOLINT(bugprone-reserved-identifier)
  return "race:std::__exception_ptr::exception_ptr::_M_release\n";
}
}

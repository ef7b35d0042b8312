// SPDX-License-Identifier: BSD-3-Clause
//
// What prepare_c10d_for_exit() asks of the threads that are in a group of c10d's.
#pragma once

namespace cohort {

/// Whether the program's run time has ended: nothing that belongs to it may be called.
bool has_ended_for_c10d() noexcept;

/// For a scope that a caller from outside may be in. Once the run time has ended, no thread leaves it but the one that
/// called prepare_c10d_for_exit(), not even by an exception.
class Caller {
 public:
  Caller() = default;
  ~Caller();
  Caller(const Caller&) = delete;
  Caller& operator=(const Caller&) = delete;
};

}  // namespace cohort

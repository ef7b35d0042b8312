// SPDX-License-Identifier: BSD-3-Clause
//
// Reading the memory of another process of the same user (process_vm_readv). The kernel allows it where it allows a
// debugger to attach: not where Yama's ptrace_scope forbids it, and not in some containers.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>

namespace cohort::shm {

/// Throws BackendError if reading is not allowed or nothing is mapped at the address.
void read_process(pid_t pid, std::uint64_t address, void* to, std::size_t bytes);

/// A word whose address a process gives to others, so that they can test whether they can read it.
std::uint64_t probe_address();
bool can_read(pid_t pid, std::uint64_t probe_address);

}  // namespace cohort::shm

// SPDX-License-Identifier: BSD-3-Clause
//
// Which line of the user's code called an operator. While a step is recorded only return addresses are noted; names of
// files are looked up when the graph is made, in the debug information of the program (libbacktrace, part of GCC).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace cohort::recording {

/// Return addresses, those of the innermost calls first.
using CallStack = std::vector<std::uintptr_t>;

/// Whether the library was built with what reads debug information.
bool can_find_source_lines() noexcept;

/// Of this thread. Takes microseconds: some 30 calls lie between a line of the user's and a kernel.
CallStack call_stack();

/// "train.cpp:41": the innermost call from code that is neither libtorch's nor this library's. Empty if that code has
/// no debug information.
std::string source_line(const CallStack& stack);

}  // namespace cohort::recording

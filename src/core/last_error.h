// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstddef>
#include <string_view>

namespace cohort {

inline constexpr std::size_t last_error_bytes = 200;

/// The beginning of the message of the last Error that was made on this thread; empty if there was none. A rank that
/// leaves its group while an exception unwinds its stack tells its peers.
std::string_view last_error_of_thread() noexcept;

/// last_error_of_thread() while an exception unwinds the stack of this thread, otherwise empty.
std::string_view error_that_unwinds() noexcept;

}  // namespace cohort

// SPDX-License-Identifier: BSD-3-Clause
//
// CBOR is decoded by a library that calls itself for each level of nesting, also for the pieces of a text of unknown
// length, which the standard does not allow to be nested. So that a file cannot make it overflow the stack, the file's
// structure is checked here first.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

namespace cohort::trace {

/// What is wrong with the first item in `bytes`, which must not be nested deeper than `deepest`; nullopt: nothing.
/// Looks at the structure alone, in one pass, without storing anything.
std::optional<std::string> problem_with_cbor(std::string_view bytes, int deepest);

}  // namespace cohort::trace

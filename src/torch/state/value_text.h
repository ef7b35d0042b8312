// SPDX-License-Identifier: BSD-3-Clause
//
// Values as text, for the metadata of a checkpoint, which holds strings alone. The text is JSON, with the three words
// for numbers that JSON lacks which Python's json module reads (NaN, Infinity, -Infinity), and gives the same bits
// back: doubles are written with as many digits as that takes, and always with a point or an exponent, so that the
// types can be told apart. The bits of a NaN are not kept.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace cohort {

std::string bool_text(bool value);
std::string integer_text(std::int64_t value);
std::string unsigned_text(std::uint64_t value);
std::string double_text(double value);
/// A CheckpointError if it is not UTF-8.
std::string string_text(const std::string& value);
std::string list_text(const std::vector<std::int64_t>& values);
/// A name from a file as it can be shown on a terminal: quoted, in ASCII without control characters, and not too long.
std::string printable(std::string_view name);
/// Whether a terminal would take something in it for an order.
bool has_control_characters(std::string_view name);

// Nothing if the text is of another type or out of range.
std::optional<bool> text_to_bool(std::string_view text);
std::optional<std::int64_t> text_to_integer(std::string_view text);
std::optional<std::uint64_t> text_to_unsigned(std::string_view text);
std::optional<double> text_to_double(std::string_view text);
std::optional<std::string> text_to_string(std::string_view text);
std::optional<std::vector<std::int64_t>> text_to_list(std::string_view text);

}  // namespace cohort

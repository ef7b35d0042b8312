// SPDX-License-Identifier: BSD-3-Clause
//
// Converts text to values, without exceptions, locales or silent truncation. The whole text must be the value.
#pragma once

#include <cohort/export.h>

#include <charconv>
#include <concepts>
#include <optional>
#include <string_view>
#include <vector>

namespace cohort {

template <std::integral T>
std::optional<T> parse_integer(std::string_view text) {
  T value{};
  const auto* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc{} || stop != end || text.empty()) return std::nullopt;
  return value;
}

/// Accepts y/yes/1/t/true/on and n/no/0/f/false/off, in upper or lower case.
std::optional<bool> parse_bool(std::string_view text);

/// Splitting "a,b,,c" at ',' gives four pieces; an empty text gives one empty piece.
COHORT_API std::vector<std::string_view> split(std::string_view text, char separator);

/// The candidate nearest to `word` by edit distance if `word` is likely a typing error for it; else empty.
std::string_view did_you_mean(std::string_view word, const std::vector<std::string_view>& candidates);

}  // namespace cohort

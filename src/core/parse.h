// SPDX-License-Identifier: BSD-3-Clause
//
// Text to values without exceptions, locale or silent truncation: the whole text must be the value.
#pragma once

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

/// y/yes/1/t/true/on and n/no/0/f/false/off in any case.
std::optional<bool> parse_bool(std::string_view text);

/// "a,b,,c" at ',' gives four pieces; an empty text gives one empty piece.
std::vector<std::string_view> split(std::string_view text, char separator);

/// The candidate nearest to `word` by edit distance, if near enough to be a likely slip; empty otherwise.
std::string_view did_you_mean(std::string_view word, const std::vector<std::string_view>& candidates);

}  // namespace cohort

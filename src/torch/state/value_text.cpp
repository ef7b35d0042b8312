// SPDX-License-Identifier: BSD-3-Clause
#include "torch/state/value_text.h"

#include <cohort/torch/checkpoint_error.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>
#include <system_error>

namespace cohort {

namespace {

template <class T>
std::optional<T> whole_number(std::string_view text) {
  T value{};
  const auto* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc() || stop != end) return std::nullopt;
  return value;
}

}  // namespace

std::string bool_text(bool value) {
  return value ? "true" : "false";
}
std::string integer_text(std::int64_t value) {
  return std::to_string(value);
}
std::string unsigned_text(std::uint64_t value) {
  return std::to_string(value);
}

std::string double_text(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "Infinity" : "-Infinity";
  auto text = fmt::format("{}", value);
  if (text.find_first_of(".e") == std::string::npos) text += ".0";
  return text;
}

std::string string_text(const std::string& value) {
  try {
    return nlohmann::json(value).dump();
  } catch (const nlohmann::json::exception&) {
    throw CheckpointError("a string that is not UTF-8 cannot be part of a checkpoint: add it as a tensor of bytes");
  }
}

std::string list_text(const std::vector<std::int64_t>& values) {
  return fmt::format("[{}]", fmt::join(values, ","));
}

std::string printable(std::string_view name) {
  constexpr std::size_t longest = 200;
  return nlohmann::json(name.substr(0, longest))
      .dump(-1, ' ', /*ensure_ascii=*/true, nlohmann::json::error_handler_t::replace);
}

bool has_control_characters(std::string_view name) {
  int rest = 0;  // bytes that a character in UTF-8 still has
  for (std::size_t i = 0; i < name.size(); ++i) {
    const auto byte = static_cast<unsigned char>(name[i]);
    if (byte < 0x20U || byte == 0x7fU) return true;
    // U+0080 to U+009F, as UTF-8 and as bytes of their own.
    const auto is_high = [](unsigned char each) { return each >= 0x80U && each < 0xa0U; };
    if (rest == 0 && is_high(byte)) return true;
    if (byte == 0xc2U && i + 1 < name.size() && is_high(static_cast<unsigned char>(name[i + 1]))) return true;
    rest = byte >= 0xf0U ? 3 : byte >= 0xe0U ? 2 : byte >= 0xc0U ? 1 : byte >= 0x80U ? std::max(rest - 1, 0) : 0;
  }
  return false;
}

std::optional<bool> text_to_bool(std::string_view text) {
  if (text == "true") return true;
  if (text == "false") return false;
  return std::nullopt;
}
std::optional<std::int64_t> text_to_integer(std::string_view text) {
  return whole_number<std::int64_t>(text);
}
std::optional<std::uint64_t> text_to_unsigned(std::string_view text) {
  return whole_number<std::uint64_t>(text);
}

std::optional<double> text_to_double(std::string_view text) {
  // An integer is of another type; the words for infinity and NaN have letters.
  if (text.find_first_of(".eENI") == std::string_view::npos) return std::nullopt;
  return whole_number<double>(text);
}

std::optional<std::string> text_to_string(std::string_view text) {
  // What begins with a quote is one string or malformed, so the parser cannot be made to nest.
  if (text.empty() || text.front() != '"') return std::nullopt;
  const auto value = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!value.is_string()) return std::nullopt;
  return value.get<std::string>();
}

std::optional<std::vector<std::int64_t>> text_to_list(std::string_view text) {
  if (text.size() < 2 || text.front() != '[' || text.back() != ']') return std::nullopt;
  text = text.substr(1, text.size() - 2);
  std::vector<std::int64_t> values;
  while (!text.empty()) {
    const auto comma = text.find(',');
    const auto value = text_to_integer(text.substr(0, comma));
    if (!value.has_value() || comma + 1 == text.size()) return std::nullopt;
    values.push_back(*value);
    text.remove_prefix(comma == std::string_view::npos ? text.size() : comma + 1);
  }
  return values;
}

}  // namespace cohort

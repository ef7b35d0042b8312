// SPDX-License-Identifier: BSD-3-Clause
#include "run/prefix_format.h"

#include <cohort/error.h>

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "core/parse.h"

namespace cohort::tool {

namespace {

using Placeholders = std::array<std::pair<std::string_view, std::string>, 4>;

[[noreturn]] void refuse(std::string_view format, const std::string& reason) {
  throw ValueError(
      fmt::format("--prefix-format \"{}\": {} Placeholders are {{rank}}, {{local_rank}}, {{node_rank}} and {{host}}; a "
                  "literal brace is written {{{{ or }}}}",
                  format, reason));
}

const std::string& value_of(std::string_view name, const Placeholders& placeholders, std::string_view format) {
  const auto found = std::ranges::find(placeholders, name, &Placeholders::value_type::first);
  if (found != placeholders.end()) return found->second;
  std::vector<std::string_view> names;
  for (const auto& placeholder : placeholders) names.push_back(placeholder.first);
  const auto nearest = did_you_mean(name, names);
  refuse(format, fmt::format("there is no placeholder {{{}}}{}", name,
                             nearest.empty() ? "." : fmt::format("; did you mean {{{}}}?", nearest)));
}

}  // namespace

std::string format_prefix(std::string_view format, const PrefixValues& values) {
  const Placeholders placeholders{{{"rank", fmt::to_string(values.rank)},
                                   {"local_rank", fmt::to_string(values.local_rank)},
                                   {"node_rank", fmt::to_string(values.node_rank)},
                                   {"host", values.host}}};
  std::string prefix;
  for (std::size_t i = 0; i < format.size(); ++i) {
    const char c = format[i];
    if (c == '\n' || c == '\r') refuse(format, "a prefix cannot contain a line break.");
    if (c != '{' && c != '}') {
      prefix += c;
    } else if (i + 1 < format.size() && format[i + 1] == c) {
      prefix += c;
      ++i;
    } else if (const auto end = format.find('}', i); c == '{' && end != std::string_view::npos) {
      prefix += value_of(format.substr(i + 1, end - i - 1), placeholders, format);
      i = end;
    } else {
      refuse(format, fmt::format("the {} at position {} has no counterpart.", c, i + 1));
    }
  }
  return prefix;
}

std::string colour_prefix(const std::string& prefix, int rank) {
  constexpr std::array colours{36, 33, 32, 35, 34, 96, 93, 92, 95, 94};
  const auto end = prefix.find_last_not_of(' ') + 1;
  if (end == 0 || prefix.find('\x1b') != std::string::npos) return prefix;
  return fmt::format("\x1b[{}m{}\x1b[0m{}", colours.at(static_cast<std::size_t>(rank) % colours.size()),
                     prefix.substr(0, end), prefix.substr(end));
}

}  // namespace cohort::tool

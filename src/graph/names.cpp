// SPDX-License-Identifier: BSD-3-Clause
#include "graph/names.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <unordered_set>

namespace cohort::graph_names {

namespace {

bool is_plain_name(std::string_view name) {
  constexpr std::string_view others = "_.-/:";
  return std::all_of(name.begin(), name.end(), [&](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
           others.find(c) != std::string_view::npos;
  });
}

std::string escaped(std::string_view text) {
  std::string result;
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      result += '\\';
      result += c;
    } else if (c == '\n') {
      result += "\\n";
    } else if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) {
      result += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
    } else {
      result += c;
    }
  }
  return result;
}

}  // namespace

std::vector<std::string> value_names(const Graph& graph) {
  std::vector<std::string> names;
  names.reserve(graph.values.size());
  std::unordered_set<std::string> given;
  std::size_t arguments = 0;
  std::size_t unnamed = 0;
  for (std::size_t i = 0; i < graph.values.size(); ++i) {
    const auto& value = graph.values[i];
    if (value.origin == GraphValue::Origin::result) {
      names.push_back(fmt::format("%{}", i));
    } else if (value.origin == GraphValue::Origin::argument) {
      names.push_back(fmt::format("%arg{}", arguments++));
    } else {
      auto name = value.name.empty()          ? fmt::format("@const{}", unnamed++)
                  : is_plain_name(value.name) ? "@" + value.name
                                              : "@" + graph_names::in_quotes(value.name);
      // No name has a '#' of itself, outside of quotes.
      if (!given.insert(name).second) name += fmt::format("#{}", i);
      names.push_back(std::move(name));
    }
  }
  return names;
}

bool is_row_major(const GraphValue& value) {
  if (value.sizes.size() != value.strides.size()) return false;
  if (std::find(value.sizes.begin(), value.sizes.end(), 0) != value.sizes.end()) return true;
  std::uint64_t expected = 1;
  for (std::size_t i = value.sizes.size(); i-- > 0;) {
    if (value.sizes[i] == 1) continue;
    if (static_cast<std::uint64_t>(value.strides[i]) != expected) return false;
    expected *= static_cast<std::uint64_t>(value.sizes[i]);
  }
  return true;
}

std::string bytes_text(std::size_t bytes) {
  constexpr std::array units{"KiB", "MiB", "GiB", "TiB"};
  if (bytes < 1024) return fmt::format("{} B", bytes);
  double amount = static_cast<double>(bytes) / 1024;
  std::size_t unit = 0;
  // As soon as it would be printed as 1024.0.
  while (amount >= 1023.95 && unit + 1 < units.size()) {
    amount /= 1024;
    ++unit;
  }
  return fmt::format("{:.1f} {}", amount, units.at(unit));
}

std::string counted(std::size_t count, std::string_view noun) {
  return fmt::format("{} {}{}", count, noun, count == 1 ? "" : "s");
}

std::string in_quotes(std::string_view text) {
  return '"' + escaped(text) + '"';
}

std::string shortened(std::string_view text, std::size_t limit) {
  const auto on_one_line = [](std::string_view part) {
    const bool is_plain = std::none_of(part.begin(), part.end(),
                                       [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; });
    return is_plain ? std::string(part) : escaped(part);
  };
  if (text.size() <= limit) return on_one_line(text);
  auto end = limit;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xc0U) == 0x80) --end;  // not within a character of UTF-8
  return fmt::format("{}... ({} characters)", on_one_line(text.substr(0, end)), text.size());
}

std::string_view unquoted(std::string_view text) {
  const bool has_quotes =
      text.size() >= 2 && (text.front() == '"' || text.front() == '\'') && text.back() == text.front();
  return has_quotes ? text.substr(1, text.size() - 2) : text;
}

const GraphOperand* find_operand(const GraphNode& node, std::string_view name) {
  const auto found = std::find_if(node.operands.begin(), node.operands.end(),
                                  [&](const GraphOperand& each) { return each.name == name; });
  return found == node.operands.end() ? nullptr : &*found;
}

std::string_view label_of(const Graph& graph, std::string_view group) {
  const auto found =
      std::find_if(graph.groups.begin(), graph.groups.end(), [&](const GraphGroup& each) { return each.id == group; });
  return found == graph.groups.end() ? std::string_view() : std::string_view(found->label);
}

std::string_view name_of_group(const Graph& graph, std::string_view group) {
  int last = -1;
  for (const auto& each : graph.groups) {
    for (const auto rank : each.ranks) last = std::max(last, rank);
  }
  for (const auto& each : graph.groups) {
    if (each.id != group) continue;
    if (!each.label.empty()) return each.label;
    if (last >= 0 && each.ranks.size() == static_cast<std::size_t>(last) + 1) return "world";
  }
  return group;
}

const GraphOperand* reduction_of(const GraphNode& node) {
  const auto* const of_group = find_operand(node, "op");
  return of_group != nullptr ? of_group : find_operand(node, "reduce_op");
}

bool repeats_group(const GraphNode& node, const GraphOperand& operand) {
  if (node.kind != GraphNode::Kind::collective || !operand.values.empty()) return false;
  return (operand.name == "group" && unquoted(operand.text) == node.group) ||
         (operand.name == "group_size" && operand.text == std::to_string(node.group_size));
}

}  // namespace cohort::graph_names

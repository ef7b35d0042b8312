// SPDX-License-Identifier: BSD-3-Clause
#include "rendezvous/slurm.h"

#include <cohort/error.h>

#include <fmt/format.h>

#include "core/parse.h"

namespace cohort {

/// Ranges are read but not expanded, so a list of a million hosts costs no more than its text.
std::string first_slurm_host(std::string_view node_list) {
  const auto malformed = [node_list] { return ValueError(fmt::format("\"{}\" is not a SLURM node list", node_list)); };
  std::string host;
  std::size_t at = 0;
  while (at < node_list.size() && node_list[at] != ',') {
    if (node_list[at] != '[') {
      if (node_list[at] == ']') throw malformed();
      host += node_list[at++];
      continue;
    }
    const auto close = node_list.find(']', at);
    if (close == std::string_view::npos) throw malformed();
    const auto first = node_list.substr(at + 1, close - at - 1);
    const auto number = first.substr(0, first.find_first_of(",-"));
    if (number.empty() || number.find_first_not_of("0123456789") != std::string_view::npos) throw malformed();
    host += number;  // as text: leading zeros are part of the name
    at = close + 1;
  }
  if (host.empty()) throw malformed();
  return host;
}

int slurm_tasks_on_node(std::string_view tasks_per_node, int node) {
  const auto malformed = [tasks_per_node] {
    return ValueError(fmt::format("\"{}\" is not a SLURM list of tasks per node", tasks_per_node));
  };
  int passed = 0;
  for (const auto piece : split(tasks_per_node, ',')) {
    const auto open = piece.find("(x");
    const auto tasks = parse_integer<int>(piece.substr(0, open));
    int nodes = 1;
    if (open != std::string_view::npos) {
      if (!piece.ends_with(')')) throw malformed();
      nodes = parse_integer<int>(piece.substr(open + 2, piece.size() - open - 3)).value_or(0);
    }
    if (!tasks || *tasks < 1 || nodes < 1) throw malformed();
    if (node - passed < nodes) return *tasks;
    passed += nodes;
  }
  throw ValueError(fmt::format("\"{}\" has no node {}", tasks_per_node, node));
}

}  // namespace cohort

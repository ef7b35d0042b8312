// SPDX-License-Identifier: BSD-3-Clause
//
// A text that claims to be a captured graph: it is refused, or it can be printed, drawn and compared, and writing it
// gives the same graph again.
#include <cohort/error.h>
#include <cohort/torch/graph.h>

#include <cstdint>
#include <cstdlib>

#include "accepted.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  try {
    const auto graph = cohort::read_graph({reinterpret_cast<const char*>(data), size});
    const auto again = cohort::read_graph(cohort::serialize(graph));
    if (again != graph) std::abort();
    static_cast<void>(cohort::to_string(graph));
    static_cast<void>(cohort::to_dot(graph));
    static_cast<void>(cohort::first_difference(graph, again));
    for (const auto& each : cohort::summarize(graph)) {
      if (cohort::collectives_of(graph, each.group).size() > graph.nodes.size()) std::abort();
    }
    cohort::fuzz::accepted = true;
  } catch (const cohort::ValueError&) {  // NOLINT(bugprone-empty-catch): a refusal is an answer
  }
  return 0;
}

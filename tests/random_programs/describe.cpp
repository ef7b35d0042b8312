// SPDX-License-Identifier: BSD-3-Clause
//
// A program as text.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "random_programs/program.h"
#include "random_programs/reference.h"

namespace cohort::random_programs {

namespace {

std::string name_of(int group) {
  return group == world ? "world" : fmt::format("group{}", group);
}

bool has_root(Kind kind) {
  return kind == Kind::reduce || kind == Kind::broadcast || kind == Kind::gather || kind == Kind::scatter ||
         kind == Kind::any_source || kind == Kind::broadcast_bytes;
}

std::string sizes_of(const Step& step, int n) {
  std::string text;
  const auto first = shape_of(step, n, 0);
  bool is_same = true;
  for (int rank = 1; rank < n; ++rank) {
    const auto shape = shape_of(step, n, rank);
    is_same = is_same && shape.inputs == first.inputs && shape.outputs == first.outputs;
  }
  for (int rank = 0; rank < (is_same ? 1 : n); ++rank) {
    const auto shape = shape_of(step, n, rank);
    if (shape.inputs.empty() && shape.outputs.empty()) continue;
    text += is_same ? ", elements" : fmt::format(", rank {}:", rank);
    if (!shape.inputs.empty()) text += fmt::format(" in {{{}}}", fmt::join(shape.inputs, ", "));
    if (!shape.outputs.empty()) text += fmt::format(" out {{{}}}", fmt::join(shape.outputs, ", "));
  }
  return text;
}

std::string memory_of(const Step& step, int n) {
  std::string text;
  for (int rank = 0; rank < n; ++rank) {
    const auto layout = layout_of(step, rank);
    text += fmt::format("{}{}{}", rank == 0 ? "" : " ",
                        layout == Layout::adjacent ? "adjacent"
                        : layout == Layout::apart  ? "apart"
                                                   : "backwards",
                        wants_group_memory(step, rank) ? "*" : "");
  }
  return text;
}

std::string call_of(const Step& step, int n) {
  std::string text(to_string(step.kind));
  if (is_message(step.kind) || step.kind <= Kind::all_to_all_list) text += fmt::format(" {}", to_string(step.dtype));
  if (is_reduction(step.kind)) text += fmt::format(" {}", to_string(step.reduction));
  if (has_root(step.kind)) text += fmt::format(", root {}", root_of(step, n));
  if (step.kind == Kind::message) text += fmt::format(", {} to {}", sender_of(step, n), receiver_of(step, n));
  if (step.kind == Kind::exchange) text += fmt::format(", shift {}", shift_of(step, n));
  if (is_message(step.kind)) text += fmt::format(", tag {}", tag_of(step));
  if (step.is_in_place) text += ", in place";
  if (step.is_async) text += ", async";
  if (step.kind < Kind::barrier || is_message(step.kind)) {
    text += sizes_of(step, n) + "; memory of ranks 0, 1, ...: " + memory_of(step, n);
  }
  return text;
}

}  // namespace

std::string describe(const Program& program) {
  const auto members = members_of(program);
  auto text = fmt::format("{} rank{} as {}{}{}\n", program.size, program.size == 1 ? "" : "s",
                          program.ranks_are_threads ? "threads" : "processes",
                          program.hosts > 1 ? fmt::format(" on {} hosts", program.hosts) : "",
                          program.is_detail ? ", COHORT_DEBUG=detail" : "");
  for (const auto& step : program.steps) {
    const auto n = static_cast<int>(members.at(step.group).size());
    text += fmt::format("{:>5}: ", step.number);
    if (step.kind == Kind::split) {
      text += fmt::format("{} = {}->split_group({{{}}})  [ranks {} of the world]\n", name_of(step.number),
                          name_of(step.group), fmt::join(split_of(step, n), ", "),
                          fmt::join(members.at(step.number), ", "));
    } else if (step.kind == Kind::wait) {
      text += "wait for half of what is asynchronous, each rank in an order of its own\n";
    } else {
      text += fmt::format("{}: {}\n", name_of(step.group), call_of(step, n));
    }
    for (const auto& part : step.parts) text += fmt::format("         | {}\n", call_of(part, n));
  }
  if (std::any_of(program.steps.begin(), program.steps.end(), [](const auto& step) { return step.is_async; })) {
    text += "  end: wait for everything, each rank in an order of its own\n";
  }
  return text + "  (* on ranks with a star the memory is the group's, where the backend has such)\n";
}

}  // namespace cohort::random_programs

// SPDX-License-Identifier: BSD-3-Clause
//
// Tries programs that are a little simpler, and goes on from the first that still fails, until none does.
#include <algorithm>
#include <chrono>

#include "torch/dtensor/programs/program.h"

namespace cohort::test::programs {

namespace {

template <class List>
void erase_at(List& list, std::size_t i) {
  list.erase(list.begin() + static_cast<std::ptrdiff_t>(i));
}

/// Without a value, whose uses become uses of `instead`.
Program without(const Program& program, std::size_t value, std::size_t instead) {
  auto smaller = program;
  erase_at(smaller.values, value);
  for (auto& each : smaller.values) {
    for (auto& argument : each.arguments) {
      if (argument == value) argument = instead;
      if (argument > value) --argument;
    }
  }
  return smaller;
}

bool is_used(const Program& program, std::size_t value) {
  return std::any_of(program.values.begin(), program.values.end(), [&](const Value& each) {
    return std::find(each.arguments.begin(), each.arguments.end(), value) != each.arguments.end();
  });
}

using Visit = std::function<bool(Program)>;  ///< true: that is the next one

bool fewer_values(const Program& program, const Visit& visit) {
  for (auto i = program.values.size(); i-- > 0;) {
    const auto& value = program.values[i];
    if (!is_used(program, i)) {
      if (program.values.size() > 1 && visit(without(program, i, i))) return true;
      continue;
    }
    for (const auto argument : value.arguments) {
      if (visit(without(program, i, argument))) return true;
    }
    // What an operator made, as an input.
    if (value.op == "input") continue;
    auto cut = program;
    const auto sizes = run_dense(program)[i].sizes().vec();
    cut.values[i] = {.numbers = sizes, .placements = Placements(program.shape.size(), Replicate())};
    if (visit(cut)) return true;
    for (std::size_t dim = 0; dim < program.shape.size(); ++dim) {
      for (std::size_t d = 0; d < sizes.size(); ++d) {
        auto sharded = cut;
        sharded.values[i].placements[dim] = Shard(static_cast<std::int64_t>(d));
        if (visit(std::move(sharded))) return true;
      }
      auto partial = cut;
      partial.values[i].placements[dim] = Partial();
      if (visit(std::move(partial))) return true;
    }
  }
  return false;
}

bool smaller_mesh(const Program& program, const Visit& visit) {
  for (std::size_t dim = 0; dim < program.shape.size(); ++dim) {
    if (program.shape.size() > 1) {
      auto flat = program;
      erase_at(flat.shape, dim);
      for (auto& each : flat.values) {
        if (!each.placements.empty()) erase_at(each.placements, dim);
      }
      if (visit(std::move(flat))) return true;
    }
    if (program.shape[dim] > 1) {
      auto smaller = program;
      --smaller.shape[dim];
      if (visit(std::move(smaller))) return true;
    }
  }
  return false;
}

bool plainer_placements(const Program& program, const Visit& visit) {
  for (std::size_t i = 0; i < program.values.size(); ++i) {
    for (std::size_t dim = 0; dim < program.values[i].placements.size(); ++dim) {
      const auto& placement = program.values[i].placements[dim];
      const auto becomes = [&](const Placement& other) {
        auto plainer = program;
        plainer.values[i].placements[dim] = other;
        return visit(std::move(plainer));
      };
      if (!placement.is_replicate() && becomes(Replicate())) return true;
      if (placement.is_strided_shard() && becomes(Shard(placement.dim()))) return true;
      if (placement.is_partial() && placement != Partial() && becomes(Partial())) return true;
    }
  }
  return false;
}

bool smaller_numbers(const Program& program, const Visit& visit) {
  // Sizes that must agree are equal, so equal ones are changed together as well.
  for (std::int64_t size = 8; size > 0; --size) {
    auto smaller = program;
    bool is_changed = false;
    for (auto& each : smaller.values) {
      if (each.op != "input") continue;
      is_changed = is_changed || std::find(each.numbers.begin(), each.numbers.end(), size) != each.numbers.end();
      std::replace(each.numbers.begin(), each.numbers.end(), size, size - 1);
      if (each.below == size && size > 1) each.below = size - 1;
    }
    if (is_changed && visit(std::move(smaller))) return true;
  }
  for (std::size_t i = 0; i < program.values.size(); ++i) {
    for (std::size_t k = 0; k < program.values[i].numbers.size(); ++k) {
      if (program.values[i].numbers[k] == 0) continue;
      auto smaller = program;
      --smaller.values[i].numbers[k];
      if (visit(std::move(smaller))) return true;
    }
  }
  return false;
}

}  // namespace

Program shrink(Program program, const std::function<bool(const Program&)>& fails, std::chrono::milliseconds limit) {
  const auto until = std::chrono::steady_clock::now() + limit;
  for (;;) {
    Program next;
    const Visit visit = [&](Program candidate) {
      if (std::chrono::steady_clock::now() >= until || !is_fit(candidate) || !fails(candidate)) return false;
      next = std::move(candidate);
      return true;
    };
    const bool is_simpler = fewer_values(program, visit) || smaller_mesh(program, visit) ||
                            plainer_placements(program, visit) || smaller_numbers(program, visit);
    if (!is_simpler) return program;
    program = std::move(next);
  }
}

}  // namespace cohort::test::programs

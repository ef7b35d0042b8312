// SPDX-License-Identifier: BSD-3-Clause
#include "random_programs/shrink.h"

#include <algorithm>

namespace cohort::random_programs {

Program with_cut(const Program& program, const Cut& cut) {
  auto smaller = with_steps(program, cut.steps);
  smaller.size = cut.size;
  smaller.hosts = std::min(smaller.hosts, smaller.size);
  return cut.elements ? with_elements(smaller, *cut.elements) : smaller;
}

Cut whole(const Program& program) {
  Cut cut{.size = program.size};
  for (const auto& step : program.steps) cut.steps.push_back(step.number);
  return cut;
}

namespace {

class Shrinker {
 public:
  Shrinker(const Program& program, const std::function<bool(const Cut&)>& fails,
           std::chrono::steady_clock::time_point until)
      : program_(program), fails_(fails), until_(until), best_(whole(program)) {}

  Cut shrink() {
    cut_steps();
    if (cut_size()) cut_steps();
    cut_elements();
    return best_;
  }

 private:
  bool try_one(Cut cut) {
    if (std::chrono::steady_clock::now() >= until_) return false;
    // Steps whose group is gone go with it.
    cut.steps = whole(with_cut(program_, cut)).steps;
    if (!fails_(cut)) return false;
    best_ = std::move(cut);
    return true;
  }

  /// Leaves out runs of steps, from the end, and shorter runs when none can be left out any more.
  void cut_steps() {
    for (auto length = std::max<std::size_t>(best_.steps.size() / 2, 1);; length = (length + 1) / 2) {
      bool has_changed = true;
      while (has_changed) {
        has_changed = false;
        for (auto end = best_.steps.size(); end > 0;) {
          const auto begin = end - std::min(end, length);
          auto fewer = best_;
          fewer.steps.erase(fewer.steps.begin() + static_cast<std::ptrdiff_t>(begin),
                            fewer.steps.begin() + static_cast<std::ptrdiff_t>(end));
          has_changed = try_one(std::move(fewer)) || has_changed;
          end = std::min(begin, best_.steps.size());
        }
      }
      if (length == 1) return;
    }
  }

  bool cut_size() {
    const int size = best_.size;
    for (int fewer = 1; fewer < size; ++fewer) {
      auto smaller = best_;
      smaller.size = fewer;
      if (try_one(std::move(smaller))) return true;
    }
    return false;
  }

  void cut_elements() {
    std::size_t most = 0;
    for (const auto& step : with_cut(program_, best_).steps) {
      most = std::max(most, step.count);
      for (const auto& part : step.parts) most = std::max(most, part.count);
    }
    for (std::size_t fewer = 0; fewer < most; fewer = fewer * 4 + 1) {
      auto smaller = best_;
      smaller.elements = fewer;
      if (try_one(std::move(smaller))) return;
    }
  }

  const Program& program_;
  const std::function<bool(const Cut&)>& fails_;
  std::chrono::steady_clock::time_point until_;
  Cut best_;
};

}  // namespace

Cut shrink(const Program& program, const std::function<bool(const Cut&)>& fails,
           std::chrono::steady_clock::time_point until) {
  return Shrinker(program, fails, until).shrink();
}

}  // namespace cohort::random_programs

// SPDX-License-Identifier: BSD-3-Clause
#include "torch/dtensor/programs/program.h"

namespace cohort::test::programs {

namespace {

constexpr std::size_t numbers_of_a_step = 4;

class Generator {
 public:
  Generator(std::uint32_t seed, std::size_t most) : random_(seed), most_(most) {}

  Program generate() {
    const std::vector<Sizes> shapes{{1}, {2}, {2}, {3}, {4}, {2, 2}, {2, 2}, {1, 3}, {3, 1}, {2, 3}};
    program_.shape = shapes[below(shapes.size())];
    add(input(first_sizes()));
    const auto steps = 1 + below(most_);
    for (std::size_t done = 0, attempts = 0; done < steps && attempts < 100; ++attempts) done += try_step() ? 1 : 0;
    return std::move(program_);
  }

 private:
  std::size_t below(std::size_t limit) { return random_() % limit; }
  bool one_in(std::size_t chances) { return below(chances) == 0; }

  Sizes first_sizes() {
    if (one_in(10)) {
      return {static_cast<std::int64_t>(below(5)), 1 + static_cast<std::int64_t>(below(2)),
              2 + static_cast<std::int64_t>(below(3)), 2 + static_cast<std::int64_t>(below(3))};
    }
    Sizes sizes(one_in(10) ? 0 : 1 + below(3));
    for (auto& each : sizes) each = static_cast<std::int64_t>(one_in(8) ? below(2) : 1 + below(7));
    return sizes;
  }

  Placement placement(std::size_t dims, bool may_be_partial) {
    const auto dim = [&] { return static_cast<std::int64_t>(below(dims)); };
    const auto kind = below(10);
    if (dims > 0 && kind < 5) return Shard(dim());
    if (dims > 0 && kind == 5) return StridedShard(dim(), 2 + static_cast<std::int64_t>(below(2)));
    if (!may_be_partial || kind < 8) return Replicate();
    const Partial reductions[] = {Partial(),      Partial(),      Partial(),         Partial("avg"),
                                  Partial("max"), Partial("min"), Partial("product")};
    return reductions[below(std::size(reductions))];
  }

  Placements placements(std::size_t dims, bool may_be_partial) {
    Placements all;
    for (std::size_t i = 0; i < program_.shape.size(); ++i) all.push_back(placement(dims, may_be_partial));
    return all;
  }

  Value input(const Sizes& sizes, std::int64_t limit = 0) {
    return {.numbers = sizes, .placements = placements(sizes.size(), limit == 0), .below = limit};
  }

  std::size_t add(Value value) {
    dense_.push_back(dense_value(value, dense_.size(), dense_));
    program_.values.push_back(std::move(value));
    return program_.values.size() - 1;
  }

  /// A value with these sizes that is there already, or a new input.
  std::size_t find_or_add(const Wanted& wanted) {
    for (std::size_t i = 0; i < dense_.size(); ++i) {
      const bool fits = wanted.below == 0 && dense_[i].is_floating_point() && dense_[i].sizes() == wanted.sizes;
      if (fits && one_in(3)) return i;
    }
    return add(input(wanted.sizes, wanted.below));
  }

  std::size_t floating_value() {
    if (!one_in(4) && dense_.back().is_floating_point()) return dense_.size() - 1;
    for (;;) {
      const auto i = below(dense_.size());
      if (dense_[i].is_floating_point()) return i;
    }
  }

  bool try_step() {
    const auto before = program_.values.size();
    const auto first = floating_value();
    try {
      if (one_in(8)) {
        add({.op = "redistribute",
             .arguments = {first},
             .placements = placements(static_cast<std::size_t>(dense_[first].dim()), false)});
        return true;
      }
      const auto& op = operators()[below(operators().size())];
      if (op.is_wrong) return false;
      Value step{.op = op.name, .arguments = {first}};
      for (std::size_t i = 0; i < numbers_of_a_step; ++i) step.numbers.push_back(static_cast<std::int64_t>(below(12)));
      if (op.others) {
        for (const auto& each : op.others(dense_[first].sizes().vec(), random_)) {
          step.arguments.push_back(find_or_add(each));
        }
      }
      add(std::move(step));
      return true;
    } catch (const Unfit&) {
      program_.values.resize(before);
      dense_.resize(before);
      return false;
    }
  }

  Random random_;
  std::size_t most_;
  Program program_{};
  Tensors dense_{};
};

}  // namespace

Program generate(std::uint32_t seed, std::size_t most) {
  return Generator(seed, most).generate();
}

}  // namespace cohort::test::programs

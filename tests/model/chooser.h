// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <random>
#include <span>
#include <utility>
#include <vector>

#include "model/memory.h"

namespace cohort::model {

/// Makes the decisions of an execution. With the same decisions, a program runs in the same way.
class Chooser {
 public:
  Chooser() = default;
  Chooser(const Chooser&) = delete;
  Chooser& operator=(const Chooser&) = delete;
  virtual ~Chooser() = default;

  /// One of `count` possibilities; nullopt if that is impossible, which means that the program behaved differently from
  /// the last time.
  virtual std::optional<std::size_t> choose(std::size_t count) = 0;
  /// The index of the thread that runs next, among those that can.
  virtual std::optional<std::size_t> choose_thread(std::span<const ThreadId> candidates) {
    return choose(candidates.size());
  }
};

/// All decisions, depth first: the first possibility of each, then the second possibility of the last decision, and so
/// on.
class ExhaustiveChooser final : public Chooser {
 public:
  std::optional<std::size_t> choose(std::size_t count) override;
  /// Proceeds to the next execution; returns false if there is none left.
  bool advance();

 private:
  struct Branch {
    std::size_t chosen = 0;
    std::size_t count = 0;
  };
  std::vector<Branch> path_;
  std::size_t depth_ = 0;
};

/// Chooses all possibilities of a decision with equal probability.
class UniformChooser : public Chooser {
 public:
  explicit UniformChooser(std::uint64_t seed) : random_(seed) {}
  std::optional<std::size_t> choose(std::size_t count) override { return random_() % count; }

 private:
  std::mt19937_64 random_;
};

/// The thread with the highest of randomly assigned priorities runs, and at a few random steps it loses its priority
/// (Burckhardt et al., ASPLOS 2010): a bug that needs d such changes is found with a probability that depends on d and
/// on the length of the program, not on the number of its interleavings. Which store a load returns is still chosen
/// uniformly.
class PriorityChooser final : public UniformChooser {
 public:
  /// `length` is about the number of decisions between threads in an execution.
  PriorityChooser(std::uint64_t seed, std::size_t length);
  std::optional<std::size_t> choose_thread(std::span<const ThreadId> candidates) override;

 private:
  std::array<std::int64_t, max_threads> priorities_{};
  std::int64_t lowest_ = 0;
  std::array<std::size_t, 3> changes_{};
  std::size_t step_ = 0;
};

/// Repeats recorded decisions.
class ReplayChooser final : public Chooser {
 public:
  explicit ReplayChooser(std::vector<std::size_t> decisions) : decisions_(std::move(decisions)) {}
  std::optional<std::size_t> choose(std::size_t count) override;

 private:
  std::vector<std::size_t> decisions_;
  std::size_t next_ = 0;
};

}  // namespace cohort::model

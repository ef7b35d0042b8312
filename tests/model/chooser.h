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

/// Makes the decisions of an execution. Given the same decisions a program runs the same way.
class Chooser {
 public:
  Chooser() = default;
  Chooser(const Chooser&) = delete;
  Chooser& operator=(const Chooser&) = delete;
  virtual ~Chooser() = default;

  /// One of `count` possibilities, none if this cannot be: then the program did not do what it did last time.
  virtual std::optional<std::size_t> choose(std::size_t count) = 0;
  /// Which of the threads that could go on does, as an index.
  virtual std::optional<std::size_t> choose_thread(std::span<const ThreadId> candidates) {
    return choose(candidates.size());
  }
};

/// Every decision there is, depth first: the first possibility of each, then the second of the last one, and so on.
class ExhaustiveChooser final : public Chooser {
 public:
  std::optional<std::size_t> choose(std::size_t count) override;
  /// Turns to the next execution; false when there is none left.
  bool advance();

 private:
  struct Branch {
    std::size_t chosen = 0;
    std::size_t count = 0;
  };
  std::vector<Branch> path_;
  std::size_t depth_ = 0;
};

/// All possibilities of each decision alike.
class UniformChooser : public Chooser {
 public:
  explicit UniformChooser(std::uint64_t seed) : random_(seed) {}
  std::optional<std::size_t> choose(std::size_t count) override { return random_() % count; }

 private:
  std::mt19937_64 random_;
};

/// The thread with the highest of randomly assigned priorities runs, and at a few random steps it loses its rank
/// (Burckhardt et al., ASPLOS 2010): a bug that needs d such changes is found with a probability that depends on d and
/// the length of the program, not on the number of its interleavings. Which store a load returns stays uniform.
class PriorityChooser final : public UniformChooser {
 public:
  /// `length`: about how many decisions between threads an execution takes.
  PriorityChooser(std::uint64_t seed, std::size_t length);
  std::optional<std::size_t> choose_thread(std::span<const ThreadId> candidates) override;

 private:
  std::array<std::int64_t, max_threads> priorities_{};
  std::int64_t lowest_ = 0;
  std::array<std::size_t, 3> changes_{};
  std::size_t step_ = 0;
};

/// Decisions made before.
class ReplayChooser final : public Chooser {
 public:
  explicit ReplayChooser(std::vector<std::size_t> decisions) : decisions_(std::move(decisions)) {}
  std::optional<std::size_t> choose(std::size_t count) override;

 private:
  std::vector<std::size_t> decisions_;
  std::size_t next_ = 0;
};

}  // namespace cohort::model

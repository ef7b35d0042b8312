// SPDX-License-Identifier: BSD-3-Clause
//
// Random trainings: combinations of models, options of DistributedDataParallel, optimizers and ways to step, each
// compared with the same training in one process without any of it. A training is a list of choices, so that one that
// fails can be made plainer choice by choice, and is printed as text that runs it again.
#pragma once

#include <ATen/core/Tensor.h>
#include <cohort/process_group.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace cohort::test::trainings {

/// Something to choose. The first value is the plainest.
struct Choice {
  std::string_view name;
  std::vector<std::string_view> values;
};

/// All that can be combined.
const std::vector<Choice>& choices();

class Training {
 public:
  /// The plainest of all.
  Training();

  /// Whether `name` has this value; a name or value that does not exist fails an assertion.
  bool has(std::string_view name, std::string_view value) const;
  /// The value as a number.
  int number(std::string_view name) const;
  void set(std::string_view name, std::string_view value);

  /// Whether its choices can go together. What the library refuses goes together here, if a user might try it.
  bool is_fit() const;

  /// Whether it learns what one process learns to the last digits: gradients are not compressed, and no precision is
  /// lost.
  bool is_exact() const;

  /// "ranks=2 captured=yes": what is not the plainest. parse() throws std::invalid_argument for anything else.
  std::string text() const;
  static Training parse(std::string_view text);

  /// Indices into the values of choices(), in its order.
  std::vector<std::size_t> picks;
};

/// The training of this seed.
Training generate(std::uint32_t seed);

/// The plainest training that still fails, as far as changing one choice at a time finds it.
Training shrink(Training training, const std::function<bool(const Training&)>& fails);

/// What came of it on one rank or in one process.
struct Outcome {
  std::vector<at::Tensor> values;     ///< parameters and buffers
  std::vector<at::Tensor> gradients;  ///< undefined where there is none
  std::string error;                  ///< empty: it ended
  bool is_refused = false;            ///< the error says that this cannot be done, and not that a rank is missing
};

Outcome train_on_rank(const Training& training, const ProcessGroupPtr& group);
Outcome train_alone(const Training& training);

/// Says what is wrong, or returns an empty text. `was_refused` tells whether all ranks said that they cannot do this.
std::string failure_of(const Training& training, bool* was_refused = nullptr);

}  // namespace cohort::test::trainings

// SPDX-License-Identifier: BSD-3-Clause
//
// The text as numbers, and the batches of each step.
#pragma once

#include <torch/torch.h>

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

namespace gpt {

/// One token for each letter (byte) that occurs.
class Text {
 public:
  /// A std::runtime_error if the file cannot be read or is empty.
  explicit Text(const std::filesystem::path& file);

  const torch::Tensor& tokens() const noexcept { return tokens_; }
  std::int64_t letters() const noexcept { return static_cast<std::int64_t>(alphabet_.size()); }
  /// Letters that do not occur in the text are left out.
  torch::Tensor encode(std::string_view letters) const;
  std::string decode(const torch::Tensor& tokens) const;

 private:
  std::string alphabet_;
  torch::Tensor tokens_;
};

struct Batch {
  torch::Tensor inputs;   ///< sequences x context
  torch::Tensor targets;  ///< the same, one letter further
};

/// What each step learns from is a function of seed and step alone: however many processes share a step, together they
/// see the same sequences.
class Batches {
 public:
  /// A std::runtime_error if the text is shorter than one sequence.
  Batches(const Text& text, int sequences, int context, std::uint64_t seed);

  /// The share of process `rank` of `size` (which divides the number of sequences).
  Batch at(int step, int rank = 0, int size = 1) const;

 private:
  torch::Tensor tokens_;
  int sequences_;
  int context_;
  std::uint64_t seed_;
};

}  // namespace gpt

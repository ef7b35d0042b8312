// SPDX-License-Identifier: BSD-3-Clause
#include "data.h"

#include <algorithm>
#include <fstream>
#include <iterator>
#include <random>
#include <stdexcept>
#include <vector>

namespace gpt {

Text::Text(const std::filesystem::path& file) {
  std::ifstream in(file, std::ios::binary);
  const std::string all{std::istreambuf_iterator<char>(in), {}};
  if (!in.is_open()) throw std::runtime_error("cannot read " + file.string());
  if (all.empty()) throw std::runtime_error(file.string() + " is empty");
  alphabet_ = all;
  std::sort(alphabet_.begin(), alphabet_.end());
  alphabet_.erase(std::unique(alphabet_.begin(), alphabet_.end()), alphabet_.end());
  tokens_ = encode(all);
}

torch::Tensor Text::encode(std::string_view letters) const {
  std::vector<std::int64_t> numbers;
  for (const char letter : letters) {
    const auto at = alphabet_.find(letter);
    if (at != std::string::npos) numbers.push_back(static_cast<std::int64_t>(at));
  }
  return torch::tensor(numbers, torch::kLong);
}

std::string Text::decode(const torch::Tensor& tokens) const {
  std::string text;
  const auto flat = tokens.to(torch::kCPU).contiguous().view(-1);
  for (std::int64_t i = 0; i < flat.numel(); ++i)
    text += alphabet_.at(static_cast<std::size_t>(flat[i].item<int64_t>()));
  return text;
}

Batches::Batches(const Text& text, int sequences, int context, std::uint64_t seed)
    : tokens_(text.tokens()), sequences_(sequences), context_(context), seed_(seed) {
  if (tokens_.numel() <= context_) {
    throw std::runtime_error("the text has " + std::to_string(tokens_.numel()) +
                             " letters; a sequence takes --context + 1 = " + std::to_string(context_ + 1));
  }
}

Batch Batches::at(int step, int rank, int size) const {
  // Not std::uniform_int_distribution, whose numbers differ between standard libraries. The bias of % is no matter
  // here.
  std::mt19937_64 random(seed_ * 1'000'003 + static_cast<std::uint64_t>(step));
  const auto last = static_cast<std::uint64_t>(tokens_.numel() - context_);
  std::vector<torch::Tensor> inputs;
  std::vector<torch::Tensor> targets;
  const int share = sequences_ / size;
  for (int i = 0; i < sequences_; ++i) {
    const auto at = static_cast<std::int64_t>(random() % last);
    if (i / share != rank) continue;
    inputs.push_back(tokens_.slice(0, at, at + context_));
    targets.push_back(tokens_.slice(0, at + 1, at + context_ + 1));
  }
  return {torch::stack(inputs), torch::stack(targets)};
}

}  // namespace gpt

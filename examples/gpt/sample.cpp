// SPDX-License-Identifier: BSD-3-Clause
#include "sample.h"

#include <algorithm>

namespace gpt {

std::string sample(Gpt& model, const Text& text, const Options& options, torch::Device device) {
  const torch::NoGradGuard no_grad;
  torch::manual_seed(options.seed);
  model.eval();
  // An empty line is where a story begins; a text without lines begins with its first letter.
  auto written = text.encode("\n\n");
  if (written.numel() == 0) written = text.tokens().slice(0, 0, 1);
  written = written.unsqueeze(0).to(device);
  for (int i = 0; i < options.sample; ++i) {
    const auto seen = written.slice(1, std::max<std::int64_t>(0, written.size(1) - model.shape().context));
    const auto odds = (model.forward(seen).select(1, -1) / options.temperature).softmax(-1);
    written = torch::cat({written, torch::multinomial(odds, 1)}, 1);
  }
  model.train();
  const auto all = text.decode(written);
  return all.substr(std::min(all.size(), all.find_first_not_of('\n')));
}

}  // namespace gpt

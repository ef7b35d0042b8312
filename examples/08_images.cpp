// SPDX-License-Identifier: BSD-3-Clause
//
// A small image model with batch normalisation. Each process sees a few images only, too few for good statistics: the
// layers are made to normalise over the images of all processes instead. Start it with
//
//   cohort run -n 2 ./images
//
// The images are drawn here: bright bars on noise, lying, standing or slanted. What is to be learnt is which.
#include <cohort/cohort.h>
#include <cohort/torch/ddp.h>
#include <cohort/torch/sync_batch_norm.h>
#include <torch/torch.h>

#include <iostream>
#include <utility>

using namespace std::chrono_literals;

namespace {

constexpr int side = 16;

std::pair<torch::Tensor, torch::Tensor> draw(int images) {
  const auto pixels = torch::randn({images, 1, side, side}) * 0.5;
  const auto classes = torch::randint(0, 3, {images}, torch::kLong);
  for (int i = 0; i < images; ++i) {
    const auto kind = classes[i].item<std::int64_t>();
    const auto at = torch::randint(2, side - 2, {1}).item<std::int64_t>();
    const auto image = pixels[i][0];
    if (kind == 0) image[at] += 2;
    if (kind == 1) image.select(1, at) += 2;
    if (kind == 2) image.diagonal(at - side / 2) += 2;
  }
  return {pixels, classes};
}

torch::nn::Sequential make_net() {
  using namespace torch::nn;
  return Sequential(Conv2d(Conv2dOptions(1, 16, 3).padding(1)), BatchNorm2d(16), ReLU(), MaxPool2d(2),
                    Conv2d(Conv2dOptions(16, 32, 3).padding(1)), BatchNorm2d(32), ReLU(), AdaptiveMaxPool2d(1),
                    Flatten(), Linear(32, 3));
}

}  // namespace

int main() {
  try {
    at::set_num_threads(1);
    const auto pg = cohort::new_group("auto", 30s, "cpu");
    const auto net = make_net();
    const auto layers = cohort::convert_sync_batch_norm(net, pg);  // in place, before the model is wrapped
    cohort::DistributedDataParallel ddp(net, {.process_group = pg});
    torch::optim::SGD optimizer(ddp.parameters(), torch::optim::SGDOptions(0.05).momentum(0.9));

    torch::manual_seed(7 + static_cast<std::uint64_t>(pg->rank()));
    for (int step = 1; step <= 120; ++step) {
      const auto [pixels, classes] = draw(8);
      auto loss = torch::nn::functional::cross_entropy(ddp.forward(pixels), classes);
      optimizer.zero_grad();
      loss.backward();
      optimizer.step();
      if (step % 30 == 0 && pg->rank() == 0) std::cout << "step " << step << ": loss " << loss.item<float>() << '\n';
    }

    // Statistics and weights are the same everywhere; each process tests on images of its own, and the counts are
    // added.
    ddp.eval();
    const torch::NoGradGuard no_grad;
    const auto [pixels, classes] = draw(100);
    auto right = (ddp.forward(pixels).argmax(1) == classes).sum();
    pg->all_reduce(right);
    const auto all = 100 * pg->size();
    if (pg->rank() == 0) {
      std::cout << right.item<std::int64_t>() << " of " << all << " new images are told apart, with " << layers
                << " layers normalised over all processes\n";
    }
    return right.item<std::int64_t>() > all * 8 / 10 ? 0 : 1;
  } catch (const std::exception& e) {
    std::cerr << "images: " << e.what() << '\n';
    return 1;
  }
}

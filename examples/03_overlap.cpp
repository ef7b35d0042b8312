// SPDX-License-Identifier: BSD-3-Clause
//
// Computing while communicating, the way data-parallel training does it: as soon as the gradients of a layer are there
// they are averaged over all processes, while the next layer is computed. The gradients lie in memory of the group, so
// the collective copies nothing. Start it with
//
//   cohort run -n 2 ./overlap
#include <cohort/cohort.h>

#include <cmath>
#include <iostream>
#include <vector>

using namespace std::chrono_literals;

namespace {

/// Stands for the backward pass of one layer.
void compute_gradients(std::span<float> gradients, int rank, int layer) {
  for (std::size_t i = 0; i < gradients.size(); ++i) {
    gradients[i] = std::sin(static_cast<float>(i)) + static_cast<float>(rank * layer);
  }
}

}  // namespace

int main() {
  try {
    const auto pg = cohort::new_group("shm", 30s, "cpu");
    constexpr int layers = 8;
    constexpr std::size_t parameters = 100'000;

    std::vector<cohort::GroupMemory> memory;
    std::vector<cohort::Work> under_way;
    for (int layer = 0; layer < layers; ++layer) {
      memory.push_back(pg->allocate(parameters * sizeof(float)));
      const auto gradients = memory.back().as<float>();
      compute_gradients(gradients, pg->rank(), layer);
      under_way.push_back(pg->all_reduce(gradients, {.op = cohort::ReduceOp::avg(), .async_op = true}));
    }
    for (const auto& work : under_way) work.wait();

    // sin(0) is 0: what is left is the average of rank * layer.
    const float average = memory.back().as<float>().front();
    const float expected = static_cast<float>((layers - 1) * (pg->size() - 1)) / 2;
    if (pg->rank() == 0)
      std::cout << layers << " layers averaged; the last layer's first gradient is " << average << '\n';
    return average == expected ? 0 : 1;
  } catch (const cohort::Error& e) {
    std::cerr << "overlap: " << e.what() << '\n';
    return 1;
  }
}

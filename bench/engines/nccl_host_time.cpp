// SPDX-License-Identifier: BSD-3-Clause
//
// What an all_reduce of 1 KiB costs the host, world size 1: backend nccl beside PyTorch's ProcessGroupNCCL, driven from
// C++ in the same process, on the same NCCL, in turns. Medians of rounds, and the median of the rounds' ratios.
//
//   nccl_host_time [rounds] [calls per round]
#include <c10/cuda/CUDAStream.h>
#include <cohort/hash_store.h>
#include <cohort/new_group.h>
#include <cuda_runtime_api.h>
#include <torch/torch.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <vector>

#include "measure/interleaved.h"
#include "measure/statistics.h"

namespace {

using namespace std::chrono_literals;

/// Microseconds of host time per call; the device is idle before and after, and its queue never full.
double round_of(int calls, const std::function<void()>& call) {
  cudaDeviceSynchronize();
  const auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < calls; ++i) call();
  const std::chrono::duration<double, std::micro> took = std::chrono::steady_clock::now() - start;
  cudaDeviceSynchronize();
  return took.count() / calls;
}

void compare(const char* what, int rounds, int calls, const std::function<void()>& ours,
             const std::function<void()>& theirs) {
  using namespace cohort::measure;
  const auto time = [&](std::size_t which) { return round_of(calls, which == 0 ? ours : theirs); };
  take_turns(2, 3, time);  // warms up
  const auto times = take_turns(2, rounds, time);
  std::printf("%-28s cohort %6.2f us   PyTorch %6.2f us   ratio %.2f\n", what, median(times[0]), median(times[1]),
              median_ratio(times[0], times[1]));
}

}  // namespace

int main(int argc, char** argv) {
  const int rounds = argc > 1 ? std::atoi(argv[1]) : 50;
  const int calls = argc > 2 ? std::atoi(argv[2]) : 200;
  const auto tensor = std::make_shared<at::Tensor>(torch::ones({256}, torch::kCUDA));  // PyTorch's NCCL is loaded now
  auto* const stream = static_cast<void*>(c10::cuda::getCurrentCUDAStream().stream());

  const auto store = c10::make_intrusive<c10d::HashStore>();
  auto options = c10d::ProcessGroupNCCL::Options::create();
  options->timeout = 60s;
  const auto peer = c10::make_intrusive<c10d::ProcessGroupNCCL>(store, 0, 1, options);
  const auto group = cohort::new_group("nccl", 60s, "cuda:0", {},
                                       {.store = std::make_shared<cohort::HashStore>(), .rank = 0, .size = 1});
  const cohort::Buffer buffer(tensor->data_ptr(), cohort::DType::f32, {256}, {}, "cuda:0", tensor);
  std::vector<at::Tensor> tensors{*tensor};

  std::printf("all_reduce of 1 KiB, world size 1, %d rounds of %d calls; PyTorch %s\n", rounds, calls, TORCH_VERSION);
  for (const bool async_op : {false, true}) {
    c10d::AllreduceOptions how;
    how.asyncOp = async_op;
    compare(
        async_op ? "beside the stream, wait()" : "on the user's stream", rounds, calls,
        [&] { group->all_reduce(buffer, {.async_op = async_op, .stream = stream}).wait(); },
        [&] {
          const auto work = peer->allreduce(tensors, how);
          if (work) work->wait();
        });
  }
  peer->shutdown();
  return 0;
}

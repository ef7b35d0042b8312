// SPDX-License-Identifier: BSD-3-Clause
//
// Asynchronous redistribution: what it returns before the other ranks have come, and what waits. Rank 1 joins when rank
// 0 tells it to, so that a call that waited would not return.
#include <ATen/ATen.h>
#include <cohort/error.h>
#include <cohort/torch/dtensor.h>
#include <torch/csrc/autograd/autograd.h>

#include <future>
#include <string>
#include <vector>

#include "torch/dtensor/impl.h"
#include "torch/dtensor/laid_out.h"
#include "torch/functional/async_tensor.h"
#include "torch/torch_ranks.h"

namespace cohort::test {
namespace {

bool is_in_flight(const at::Tensor& tensor) {
  const auto* const async = functional::find_async(tensor);
  return async != nullptr && !async->result()->is_done();
}

at::Tensor numbers(std::vector<std::int64_t> sizes) {
  std::int64_t elements = 1;
  for (const auto size : sizes) elements *= size;
  return at::arange(elements, at::kFloat).view(sizes);
}

struct Move {
  std::vector<std::int64_t> sizes;
  Placement from;
  Placement to;
};

std::string name_of(const Move& move) {
  return to_string(Placements{move.from}) + " -> " + to_string(Placements{move.to}) + " of " +
         std::to_string(move.sizes[0]) + " x " + std::to_string(move.sizes[1]);
}

class AsyncRedistribute : public testing::TestWithParam<Move> {};

INSTANTIATE_TEST_SUITE_P(Moves, AsyncRedistribute,
                         testing::Values(Move{{4, 2}, Shard(0), Replicate()}, Move{{5, 2}, Shard(0), Replicate()},
                                         Move{{4, 2}, Shard(1), Replicate()}, Move{{4, 3}, Shard(1), Replicate()},
                                         Move{{4, 2}, Shard(0), Shard(1)}, Move{{5, 3}, Shard(0), Shard(1)},
                                         Move{{4, 2}, Shard(1), Shard(0)}, Move{{4, 2}, Partial(), Replicate()},
                                         Move{{4, 2}, Partial(), Shard(0)}, Move{{5, 3}, Partial(), Shard(1)}));

TEST_P(AsyncRedistribute, ReturnsBeforeTheOthersHaveCome) {
  const auto& move = GetParam();
  SCOPED_TRACE(name_of(move));
  std::promise<void> has_returned;
  with_torch_threads(2, [&](const ProcessGroupPtr& group) {
    const auto mesh = init_device_mesh("cpu", {2}, {}, {.process_group = group});
    const auto dense = numbers(move.sizes);
    const auto from = laid_out(dense, mesh, {move.from});
    const auto expected = laid_out(dense, mesh, {move.to}).to_local();
    if (group->rank() == 1) has_returned.get_future().wait_for(patient);
    const auto moved = from.redistribute({move.to}, {.async_op = true});
    const auto local = moved.to_local();
    const auto row = local.select(0, 0);
    EXPECT_EQ(local.sizes(), expected.sizes());
    if (group->rank() == 0) {
      EXPECT_TRUE(is_in_flight(local));
      EXPECT_TRUE(is_in_flight(row));
      has_returned.set_value();
    }
    const auto doubled = DTensor(moved * 2);  // an operator on the distributed tensor
    EXPECT_TRUE(at::allclose(doubled.to_local(), expected * 2));
    EXPECT_TRUE(at::allclose(local, expected));
    EXPECT_TRUE(at::allclose(row, expected.select(0, 0)));
    EXPECT_TRUE(local.is_contiguous());
  });
}

TEST(AsyncRedistributions, OfSeveralStepsEqualTheBlockingOnesForwardAndBackward) {
  with_torch_threads(4, [&](const ProcessGroupPtr& group) {
    const auto mesh = init_device_mesh("cpu", {2, 2}, {}, {.process_group = group});
    const auto dense = numbers({5, 3});
    const auto weights = (dense * 0.3).cos();
    for (const auto& from : combinations({dense}, 2, true, 100, 1)) {
      for (const auto& to : combinations({dense}, 2, false, 100, 1)) {
        std::vector<at::Tensor> gradients;
        for (const bool async_op : {false, true}) {
          auto leaf = laid_out(dense, mesh, from[0]).detach();
          leaf.requires_grad_();
          const auto moved = DTensor(leaf).redistribute(to[0], {.async_op = async_op});
          const auto blocking = DTensor(leaf.detach()).redistribute(to[0]);
          EXPECT_TRUE(at::equal(moved.to_local(), blocking.to_local())) << to_string(from[0]) << to_string(to[0]);
          (moved * laid_out(weights, mesh, to[0])).sum().backward();
          gradients.push_back(DTensor(leaf.grad()).to_local());
        }
        EXPECT_TRUE(at::equal(gradients[0], gradients[1])) << to_string(from[0]) << to_string(to[0]);
      }
    }
  });
}

TEST(AsyncRedistributions, MayBeWrittenInPlaceAndAreOrdinaryAfterwards) {
  with_torch_threads(2, [&](const ProcessGroupPtr& group) {
    const auto mesh = init_device_mesh("cpu", {2}, {}, {.process_group = group});
    const auto source = laid_out(numbers({4, 2}), mesh, {Shard(0)});
    const auto moved = source.redistribute({Replicate()}, {.async_op = true});
    moved.add_(1);
    moved.select(0, 1).zero_();
    auto expected = numbers({4, 2}) + 1;
    expected.select(0, 1).zero_();
    EXPECT_TRUE(at::equal(moved.to_local(), expected));
    EXPECT_TRUE(at::equal(source.full_tensor(), numbers({4, 2})));
    const auto& local = dtensor::find_impl(moved)->local();
    EXPECT_EQ(functional::find_async(functional::plain_if_done(local)), nullptr);
  });
}

TEST(AsyncRedistributions, MayBeDroppedUnused) {
  with_torch_threads(2, [&](const ProcessGroupPtr& group) {
    const auto mesh = init_device_mesh("cpu", {2}, {}, {.process_group = group});
    for (int i = 0; i < 3; ++i) {
      laid_out(numbers({4, 2}), mesh, {Shard(1)}).redistribute({Replicate()}, {.async_op = true});
    }
    EXPECT_TRUE(at::equal(laid_out(numbers({4, 2}), mesh, {Shard(1)}).full_tensor(), numbers({4, 2})));
  });
}

TEST(AsyncRedistributions, ThrowTheErrorAtTheFirstUse) {
  std::promise<void> has_returned;
  with_torch_threads(2, [&](const ProcessGroupPtr& group) {
    const auto mesh = init_device_mesh("cpu", {2}, {}, {.process_group = group});
    const auto source = laid_out(numbers({4, 2}), mesh, {Shard(1)});
    if (group->rank() == 1) {
      has_returned.get_future().wait_for(patient);
      mesh.group()->abort("a test");
      return;
    }
    const auto moved = source.redistribute({Replicate()}, {.async_op = true});
    const auto row = moved.to_local().select(0, 0);
    has_returned.set_value();
    EXPECT_ERROR(AbortedError, moved + 1, "a test");
    EXPECT_ERROR(AbortedError, moved.to_local().data_ptr(), "a test");
    EXPECT_ERROR(AbortedError, row + 1, "a test");
  });
}

}  // namespace
}  // namespace cohort::test

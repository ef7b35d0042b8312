// SPDX-License-Identifier: BSD-3-Clause
//
// The functions of functional.h: values, sizes, argument forms and errors.
#include <cohort/torch/functional.h>

#include <ATen/ATen.h>
#include <cohort/current_group.h>
#include <cohort/log.h>
#include <cohort/new_group.h>

#include <atomic>
#include <mutex>
#include <string>
#include <vector>

#include "torch/functional/functional_ranks.h"
#include "torch/functional/values.h"

namespace cohort::functional {
namespace {

using test::all_values;
using test::values_of;
using test::with_named_threads;
using test::with_torch_processes;
using test::with_torch_threads;

class FunctionalCollectives : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, FunctionalCollectives, ::testing::Values(1, 2, 3, 4));

/// Those of GC-30 and GC-31, with every rank's result computed from all ranks' inputs.
void check_values(const ProcessGroupPtr& group) {
  const auto ranks = group->size();
  const auto rank = group->rank();
  const auto mine = values_of(rank, {2, 3});
  const auto before = mine.clone();
  const auto all = all_values(ranks, {2, 3});
  const auto sum = at::stack(all).sum(0);

  EXPECT_TRUE(all_reduce(mine, "sum", group).equal(sum));
  EXPECT_TRUE(all_reduce(mine, "AVG", group).allclose(sum / ranks));
  EXPECT_TRUE(all_reduce(mine, "max", group).equal(all.back()));
  EXPECT_TRUE(all_reduce(mine.t(), "sum", group).equal(sum.t()));                          // not row-major
  EXPECT_TRUE(all_reduce(mine.narrow(1, 1, 2), "sum", group).equal(sum.narrow(1, 1, 2)));  // with gaps
  EXPECT_TRUE(all_reduce(mine.sum(), "sum", group).equal(sum.sum()));
  const auto complex = all_reduce(at::complex(mine, -mine), "sum", group);
  EXPECT_TRUE(complex.equal(at::complex(sum, -sum)));

  for (std::int64_t dim = -2; dim < 2; ++dim) {
    EXPECT_TRUE(all_gather_tensor(mine, dim, group).equal(at::cat(all, dim))) << dim;
  }
  const auto scalars = all_gather_tensor(mine.sum(), 0, group);
  ASSERT_EQ(scalars.sizes(), at::IntArrayRef({ranks}));
  EXPECT_TRUE(scalars.equal(at::stack(all).sum({1, 2})));
  EXPECT_TRUE(all_gather_tensor(at::complex(mine, mine), 1, group)
                  .equal(at::cat(at::complex(at::stack(all), at::stack(all)).unbind(0), 1)));

  const auto wide = all_values(ranks, {2 * ranks, ranks});
  const auto wide_sum = at::stack(wide).sum(0);
  const auto& my_wide = wide[static_cast<std::size_t>(rank)];
  EXPECT_TRUE(reduce_scatter_tensor(my_wide, "sum", 0, group).equal(wide_sum.narrow(0, 2 * rank, 2)));
  EXPECT_TRUE(reduce_scatter_tensor(my_wide, "sum", 1, group).equal(wide_sum.narrow(1, rank, 1)));
  EXPECT_TRUE(reduce_scatter_tensor(my_wide, "max", -1, group).equal(wide.back().narrow(1, rank, 1)));

  std::vector<at::Tensor> for_me;
  for (const auto& each : wide) for_me.push_back(each.narrow(0, 2 * rank, 2));
  EXPECT_TRUE(all_to_all_single(my_wide, {}, {}, group).equal(at::cat(for_me)));
  EXPECT_TRUE(shard_dim_alltoall(my_wide, 1, 0, group).equal(at::cat(for_me, 1)));
  // Rank r sends q rows to rank q: everybody receives its own number of rows from each rank.
  std::vector<std::int64_t> sent;
  std::vector<std::int64_t> received;
  std::vector<at::Tensor> uneven;
  for (int peer = 0; peer < ranks; ++peer) {
    sent.push_back(peer);
    received.push_back(rank);
    uneven.push_back(values_of(peer, {ranks * (ranks - 1) / 2, 2}).narrow(0, rank * (rank - 1) / 2, rank));
  }
  EXPECT_TRUE(
      all_to_all_single(values_of(rank, {ranks * (ranks - 1) / 2, 2}), received, sent, group).equal(at::cat(uneven)));

  EXPECT_TRUE(broadcast(mine, ranks - 1, group).equal(all.back()));
  std::vector<std::int64_t> to_the_next;
  for (int peer = 0; peer < ranks; ++peer) to_the_next.push_back((peer + 1) % ranks);
  const auto previous = static_cast<std::size_t>((rank + ranks - 1) % ranks);
  EXPECT_TRUE(permute_tensor(mine, to_the_next, group).equal(all[previous]));
  EXPECT_TRUE(permute_tensor(mine.sum(), to_the_next, group).equal(all[previous].sum()));
  const auto to_first = permute_tensor(mine, std::vector<std::int64_t>(static_cast<std::size_t>(ranks), 0), group);
  EXPECT_TRUE(to_first.equal(rank == 0 ? at::cat(all) : mine.narrow(0, 0, 0)));

  const auto reduced = all_reduce_coalesced({mine, mine.sum()}, "sum", group);
  ASSERT_EQ(reduced.size(), 2U);
  EXPECT_TRUE(reduced[0].equal(sum));
  EXPECT_TRUE(reduced[1].equal(sum.sum()));
  const auto gathered = all_gather_into_tensor_coalesced({mine, mine.select(0, 1)}, group);
  ASSERT_EQ(gathered.size(), 2U);
  EXPECT_TRUE(gathered[0].equal(at::cat(all)));
  EXPECT_TRUE(gathered[1].equal(at::stack(all).select(1, 1).flatten()));
  const auto scattered = reduce_scatter_tensor_coalesced({my_wide, my_wide}, "sum", {0, 1}, group);
  ASSERT_EQ(scattered.size(), 2U);
  EXPECT_TRUE(scattered[0].equal(wide_sum.narrow(0, 2 * rank, 2)));
  EXPECT_TRUE(scattered[1].equal(wide_sum.narrow(1, rank, 1)));
  EXPECT_TRUE(all_reduce_coalesced({}, "sum", group).empty());
  EXPECT_TRUE(mine.equal(before)) << "an input was modified";
}

TEST_P(FunctionalCollectives, GiveTheValuesOfAllRanks) {
  with_named_threads(GetParam(), check_values);
}

TEST(FunctionalCollectivesOfProcesses, GiveTheValuesOfAllRanks) {
  with_torch_processes(2, check_values);
}

TEST_P(FunctionalCollectives, InPlaceWriteTheGivenTensors) {
  with_named_threads(GetParam(), [](const ProcessGroupPtr& group) {
    const auto ranks = group->size();
    const auto all = all_values(ranks, {2, 3});
    const auto sum = at::stack(all).sum(0);
    const auto fresh = [&] { return values_of(group->rank(), {2, 3}); };

    const auto reduced = fresh();
    const auto version = reduced._version();
    EXPECT_TRUE(all_reduce_(reduced, "sum", group).equal(sum));
    EXPECT_TRUE(reduced.equal(sum));
    EXPECT_GT(reduced._version(), version);

    const auto first = fresh();
    const auto second = fresh();
    const auto both = all_reduce_coalesced_({first, second}, "sum", group);
    ASSERT_EQ(both.size(), 2U);
    wait_tensor(first);
    EXPECT_TRUE(first.equal(sum));
    EXPECT_TRUE(both[1].equal(sum));

    const auto received = fresh();
    broadcast_(received, ranks - 1, group);  // waited for by the tensor itself
    EXPECT_TRUE(wait_tensor(received).is_same(received));
    EXPECT_TRUE(received.equal(all.back()));

    const auto out = at::empty({2 * ranks, 3});
    EXPECT_TRUE(all_gather_into_tensor_out(fresh(), group, out).equal(at::cat(all)));
    EXPECT_TRUE(out.equal(at::cat(all)));
    group->barrier();  // those of the other threads are counted, too
    EXPECT_EQ(unwaited_collectives(), 0U);
    group->barrier();
  });
}

TEST(FunctionalErrors, AreThrownBeforeAnythingHappens) {
  with_named_threads(2, [](const ProcessGroupPtr& group) {
    const auto x = at::ones({4, 3});
    EXPECT_ERROR(ValueError, all_reduce(x, "mean", group), "mean");
    EXPECT_ERROR(TypeError, all_reduce(at::complex(x, x), "max", group), "complex64");
    EXPECT_ERROR(AssertionError, all_gather_tensor(x.t(), 0, group), "contiguous");
    EXPECT_ERROR(AssertionError, all_gather_tensor_autograd(x.t(), 0, group), "contiguous");
    EXPECT_ERROR(AssertionError, all_gather_into_tensor_coalesced({x, x.t()}, group), "contiguous");
    EXPECT_ERROR(IndexError, all_gather_tensor(x, 2, group), "no dimension 2");
    EXPECT_ERROR(AssertionError, reduce_scatter_tensor(x, "sum", 1, group), "3 elements");
    EXPECT_ERROR(AssertionError, reduce_scatter_tensor(at::ones({}), "sum", 0, group), "scalar");
    EXPECT_ERROR(AssertionError, reduce_scatter_tensor_coalesced({x}, "sum", {}, group), "0 dimensions for 1 tensors");
    EXPECT_ERROR(Error, reduce_scatter_tensor_autograd(x, "max", 0, group), "only sum");
    EXPECT_ERROR(AssertionError, all_to_all_single(x, {2, 2}, {}, group), "both");
    EXPECT_ERROR(ValueError, all_to_all_single(x, {2, 2}, {1, 1}, group), "add up to 2 rows");
    EXPECT_ERROR(AssertionError, shard_dim_alltoall(x, 0, 1, group), "3 elements");
    EXPECT_ERROR(ValueError, shard_dim_alltoall(x, 0, 0, group), "both gathered and sharded");
    EXPECT_ERROR(ValueError, broadcast(x, 2, group), "root 2 is not a rank");
    EXPECT_ERROR(ValueError, permute_tensor(x, {0}, group), "1 destinations for 2 ranks");
    EXPECT_ERROR(ValueError, permute_tensor(x, {0, 2}, group), "2 is not a rank");
    EXPECT_ERROR(ValueError, all_gather_into_tensor_out(x, group, at::empty({7, 3})), "`out` has sizes [7, 3]");
    EXPECT_ERROR(ValueError, all_gather_into_tensor_out(x, group, at::empty({8, 3}, at::kInt)), "Int");
    EXPECT_ERROR(Error, all_reduce_(at::ones({2}).requires_grad_(), "sum", group), "requires a gradient");
    // The group is as usable as before, and both ranks have issued as many collectives.
    EXPECT_TRUE(all_reduce(x, "sum", group).equal(x + x));
  });
}

TEST(FunctionalErrors, ReachEveryRankThatDisagrees) {
  with_named_threads(2, [](const ProcessGroupPtr& group) {
    const auto result = all_reduce(at::ones({4}), group->rank() == 0 ? "sum" : "max", group);
    EXPECT_THROW(result + 1, MismatchError);
    EXPECT_THROW(result.view({2, 2}) + 1, MismatchError) << "only the first use has thrown";
    EXPECT_THROW(wait_tensor(result), MismatchError);
  });
}

TEST(GroupArguments, MayBeGroupsNamesAndIds) {
  with_named_threads(2, [](const ProcessGroupPtr& group) {
    register_group("dp", group);
    const auto x = at::ones({2});
    EXPECT_TRUE(all_reduce(x, "sum", group).equal(x + x));
    EXPECT_TRUE(all_reduce(x, "sum", "dp").equal(x + x));
    EXPECT_TRUE(all_reduce(x, "sum", std::string("dp")).equal(x + x));
    EXPECT_TRUE(all_reduce(x, "sum", group->id()).equal(x + x));
    EXPECT_ERROR(Error, all_reduce(x, "sum", "tp"), "no group is registered as \"tp\"");
    EXPECT_ERROR(ValueError, all_reduce(x, "sum", ProcessGroupPtr()), "the group is null");
  });
}

TEST(GroupArguments, MayBeMeshes) {
  with_named_threads(4, [](const ProcessGroupPtr& group) {
    const ProcessGroupGuard current(group);
    const auto mesh = init_device_mesh("cpu", {2, 2}, {"dp", "tp"});
    const auto x = at::full({2}, static_cast<double>(1 << group->rank()));
    const auto row = group->rank() / 2 == 0 ? 1.0 + 2.0 : 4.0 + 8.0;
    const auto column = group->rank() % 2 == 0 ? 1.0 + 4.0 : 2.0 + 8.0;
    EXPECT_TRUE(all_reduce(x, "sum", {mesh, "tp"}).equal(at::full({2}, row)));
    EXPECT_TRUE(all_reduce(x, "sum", {mesh, 1}).equal(at::full({2}, row)));
    EXPECT_TRUE(all_reduce(x, "sum", {mesh, -2}).equal(at::full({2}, column)));
    EXPECT_TRUE(all_reduce(x, "sum", mesh["dp"]).equal(at::full({2}, column)));
    EXPECT_TRUE(all_reduce(x, "sum", mesh.flatten()).equal(at::full({2}, 15.0)));
    EXPECT_ERROR(AssertionError, all_reduce(x, "sum", mesh), "a mesh of 2 dimensions");
    EXPECT_ERROR(KeyError, all_reduce(x, "sum", {mesh, "pp"}), "pp");
    EXPECT_THROW(all_reduce(x, "sum", {mesh, 2}), Error);
  });
}

TEST(GroupArguments, MayBeRanksWithAWarning) {
  static std::atomic<int> warnings{0};
  set_log_sink([](const LogRecord& record) {
    if (record.message.find("deprecated") != std::string_view::npos) ++warnings;
  });
  with_torch_threads(2, [](const ProcessGroupPtr& group) {
    const auto x = at::ones({2});
    const std::vector<int> both{0, 1};
    group->barrier();
    EXPECT_ERROR(Error, all_reduce(x, "sum", both), "2 groups of this process have these ranks");
    group->barrier();
    {
      const ProcessGroupGuard current(group);
      EXPECT_TRUE(all_reduce(x, "sum", both).equal(x + x));
    }
    const GroupRegistryScope names;
    register_group("both", group);
    EXPECT_TRUE(all_reduce(x, "sum", both).equal(x + x));
    EXPECT_ERROR(ValueError, all_reduce(x, "sum", std::vector<int>{1, 0}), "in no group of the ranks [1, 0]");
  });
  set_log_sink(nullptr);
  EXPECT_EQ(warnings, 1);
}

TEST(FunctionalOnFakeGroups, NeverShowUninitialisedMemory) {
  const auto group =
      new_group("fake", test::patient, "cpu", {}, {.store = std::make_shared<HashStore>(), .rank = 1, .size = 3});
  const auto x = at::full({3, 2}, 7.0);
  EXPECT_TRUE(broadcast(x, 0, group).equal(x));
  EXPECT_TRUE(all_reduce(x, "sum", group).equal(x));
  EXPECT_TRUE(all_gather_tensor(x, 1, group).equal(at::full({3, 6}, 7.0)));
}

}  // namespace
}  // namespace cohort::functional

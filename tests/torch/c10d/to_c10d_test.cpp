// SPDX-License-Identifier: BSD-3-Clause
#include <cohort/hash_store.h>
#include <cohort/torch/c10d.h>
#include <cohort/torch/tensor.h>
#include <torch/torch.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include <atomic>
#include <latch>
#include <memory>
#include <thread>
#include <vector>

#include "torch/compat/features.h"
#include "torch/torch_ranks.h"

namespace cohort::test {
namespace {

using namespace std::chrono_literals;
using Tensors = std::vector<at::Tensor>;
using C10dPtr = c10::intrusive_ptr<C10dBackend>;

at::Tensor filled(double value, std::int64_t elements = 6) {
  return torch::full({elements}, value, torch::kFloat64);
}

void expect_filled(const at::Tensor& tensor, double value) {
  EXPECT_TRUE(torch::equal(tensor, torch::full_like(tensor, value))) << tensor << " instead of " << value;
}

class ToC10d : public testing::TestWithParam<int> {
 protected:
  void on_ranks(const std::function<void(const C10dPtr&, int rank, int size)>& body,
                std::chrono::milliseconds timeout = patient) {
    with_torch_threads(
        GetParam(), [&](const ProcessGroupPtr& group) { body(to_c10d(group), group->rank(), group->size()); }, timeout);
  }
};
INSTANTIATE_TEST_SUITE_P(Ranks, ToC10d, testing::Values(1, 2, 3), testing::PrintToStringParamName());

TEST_P(ToC10d, Reductions) {
  on_ranks([](const C10dPtr& pg, int rank, int size) {
    const double sum = size * (size + 1) / 2.0;
    Tensors x{filled(rank + 1)};
    EXPECT_TRUE(pg->allreduce(x)->wait());
    expect_filled(x[0], sum);
    c10d::AllreduceOptions options;
    options.reduceOp = c10d::ReduceOp::MAX;
    Tensors y{filled(rank)};
    const auto work = pg->allreduce(y, options);
    work->wait();
    expect_filled(y[0], size - 1);
    EXPECT_TRUE(work->isCompleted());
    EXPECT_TRUE(work->isSuccess());
    EXPECT_TRUE(work->result()[0].is_same(y[0]));
    EXPECT_EQ(work->retrieveOpType(), c10d::OpType::ALLREDUCE);
    // As the function does that makes one, whose name differs between versions.
    options.reduceOp.op_ = c10d::ReduceOp::PREMUL_SUM;
    options.reduceOp.supplement_ = c10::make_intrusive<c10d::NCCLPreMulSumSupplement>(0.5);
    Tensors z{filled(2)};
    pg->allreduce(z, options)->wait();
    expect_filled(z[0], size);
    c10d::AllreduceCoalescedOptions coalesced;
    Tensors several{filled(1), filled(rank + 1, 3)};
    pg->allreduce_coalesced(several, coalesced)->wait();
    expect_filled(several[0], size);
    expect_filled(several[1], sum);
    c10d::ReduceOptions to_last;
    to_last.rootRank = size - 1;
    Tensors r{filled(1)};
    pg->reduce(r, to_last)->wait();
    expect_filled(r[0], rank == size - 1 ? size : 1);
    std::vector<Tensors> parts(1);
    for (int each = 0; each < size; ++each) parts[0].push_back(filled(rank + each));
    Tensors part{filled(-1)};
    pg->reduce_scatter(part, parts)->wait();
    expect_filled(part[0], sum - size + size * rank);
    auto all = at::cat(parts[0]);
    auto mine = filled(-1);
    pg->_reduce_scatter_base(mine, all)->wait();
    expect_filled(mine, sum - size + size * rank);
  });
}

TEST_P(ToC10d, DataMovement) {
  on_ranks([](const C10dPtr& pg, int rank, int size) {
    c10d::BroadcastOptions from_last;
    from_last.rootRank = size - 1;
    Tensors x{filled(rank)};
    pg->broadcast(x, from_last)->wait();
    expect_filled(x[0], size - 1);

    Tensors mine{filled(rank)};
    std::vector<Tensors> lists(1);
    for (int each = 0; each < size; ++each) lists[0].push_back(filled(-1));
    pg->allgather(lists, mine)->wait();
    for (int each = 0; each < size; ++each) expect_filled(lists[0][static_cast<std::size_t>(each)], each);
    auto flat = filled(-1, 6 * size);
    pg->_allgather_base(flat, mine[0])->wait();
    EXPECT_TRUE(torch::equal(flat, at::cat(lists[0])));
    Tensors two{filled(rank), filled(-rank, 2)};
    std::vector<Tensors> from_ranks;
    for (int each = 0; each < size; ++each) from_ranks.push_back({filled(-7), filled(-7, 2)});
    pg->allgather_coalesced(from_ranks, two)->wait();
    for (int each = 0; each < size; ++each) {
      expect_filled(from_ranks[static_cast<std::size_t>(each)][0], each);
      expect_filled(from_ranks[static_cast<std::size_t>(each)][1], -each);
    }

    std::vector<Tensors> gathered;
    if (rank == 0) gathered.push_back(Tensors(lists[0].size()));
    if (rank == 0) {
      for (auto& each : gathered[0]) each = filled(-1);
    }
    pg->gather(gathered, mine)->wait();
    if (rank == 0) {
      for (int each = 0; each < size; ++each) expect_filled(gathered[0][static_cast<std::size_t>(each)], each);
    }
    std::vector<Tensors> given;
    if (rank == 0) given.push_back(gathered[0]);
    Tensors taken{filled(-1)};
    pg->scatter(taken, given)->wait();
    expect_filled(taken[0], rank);
    pg->barrier()->wait();
  });
}

TEST_P(ToC10d, AllToAll) {
  on_ranks([](const C10dPtr& pg, int rank, int size) {
    Tensors ins;
    Tensors outs;
    for (int each = 0; each < size; ++each) {
      ins.push_back(filled(rank * 10 + each));
      outs.push_back(filled(-1));
    }
    pg->alltoall(outs, ins)->wait();
    for (int each = 0; each < size; ++each) expect_filled(outs[static_cast<std::size_t>(each)], each * 10 + rank);
    // Rank r sends r rows to everybody.
    std::vector<std::int64_t> sent(static_cast<std::size_t>(size), rank);
    std::vector<std::int64_t> received;
    for (int each = 0; each < size; ++each) received.push_back(each);
    auto in = filled(rank, rank * size);
    auto out = filled(-1, size * (size - 1) / 2);
    pg->alltoall_base(out, in, received, sent)->wait();
    std::int64_t at = 0;
    for (int each = 0; each < size; ++each) {
      expect_filled(out.narrow(0, at, each), each);
      at += each;
    }
  });
}

TEST_P(ToC10d, MessagesWithTagsAndFromAnybody) {
  on_ranks([](const C10dPtr& pg, int rank, int size) {
    const int right = (rank + 1) % size;
    const int left = (rank + size - 1) % size;
    Tensors a{filled(rank)};
    Tensors b{filled(rank + 100)};
    Tensors c{filled(-1)};
    Tensors d{filled(-1)};
    const std::vector<c10::intrusive_ptr<c10d::Work>> works{pg->send(a, right, 1), pg->send(b, right, 2),
                                                            pg->recv(d, left, 2), pg->recv(c, left, 1)};
    for (const auto& work : works) work->wait();
    expect_filled(c[0], left);
    expect_filled(d[0], left + 100);
    const auto send = pg->send(a, right, 3);
    const auto any = pg->recvAnysource(c, 3);
    any->wait();
    send->wait();
    EXPECT_EQ(any->sourceRank(), left);
    expect_filled(c[0], left);
  });
}

TEST_P(ToC10d, SparseTensorsAreSummed) {
  on_ranks([](const C10dPtr& pg, int rank, int size) {
    const auto indices = torch::tensor({{static_cast<std::int64_t>(0), static_cast<std::int64_t>(rank + 1)}});
    Tensors x{torch::sparse_coo_tensor(indices, torch::ones({2, 3}), {size + 1, 3})};
    pg->allreduce(x)->wait();
    auto expected = torch::ones({size + 1, 3});
    expected[0] = size;
    EXPECT_TRUE(torch::equal(x[0].to_dense(), expected));
  });
}

TEST_P(ToC10d, FuturesAreCompletedAndTheirCallbacksMayWaitForMore) {
  on_ranks([](const C10dPtr& pg, int /*rank*/, int size) {
    // As PowerSGD does it: each callback starts an operation and waits for its future. More of them than threads would
    // wait for one another.
    std::vector<c10::intrusive_ptr<c10::ivalue::Future>> futures;
    std::vector<Tensors> firsts;
    std::vector<Tensors> seconds;
    for (int each = 0; each < 4; ++each) {
      firsts.push_back({filled(1)});
      seconds.push_back({filled(1)});
    }
    // In the order of the callbacks, which would otherwise differ between ranks.
    for (std::size_t each = 0; each < firsts.size(); ++each) {
      futures.push_back(pg->allreduce(firsts[each])
                            ->getFuture()
                            ->then(
                                [&, each](c10::ivalue::Future& first) {
                                  EXPECT_TRUE(first.value().isTensorList());
                                  const auto more = pg->allreduce(seconds[each])->getFuture();
                                  more->wait();
                                  return more->value();
                                },
                                c10::ListType::ofTensors()));
      futures.back()->wait();
      expect_filled(firsts[each][0], size);
      expect_filled(futures.back()->value().toTensorVector()[0], size);
    }
  });
}

TEST(CompletionOfFutures, GoesOnWhileACallbackIsBlocked) {
  with_torch_threads(2, [](const ProcessGroupPtr& group) {
    const auto pg = to_c10d(group);
    std::latch may_end(1);
    Tensors a{filled(1)};
    Tensors b{filled(1)};
    const auto blocked = pg->allreduce(a)->getFuture()->then(
        [&](c10::ivalue::Future& /*done*/) {
          may_end.wait();
          return c10::IValue(1);
        },
        c10::IntType::get());
    pg->allreduce(b)->getFuture()->wait();
    may_end.count_down();
    blocked->wait();
    expect_filled(b[0], 2);
  });
}

TEST_P(ToC10d, OperationsThatNobodyWaitsForAreDone) {
  on_ranks([](const C10dPtr& pg, int /*rank*/, int size) {
    Tensors x{filled(1)};
    Tensors y{filled(1)};
    pg->allreduce(x);
    pg->allreduce(y)->wait();
    expect_filled(x[0], size);
  });
}

TEST(ToC10dErrors, ArriveInTheWorkAndInTheFuture) {
  std::latch is_over(1);
  with_torch_threads(2, [&](const ProcessGroupPtr& group) {
    const auto pg = to_c10d(group);
    if (group->rank() == 1) return is_over.wait();  // is there, but does not come
    c10d::AllreduceOptions options;
    options.timeout = 50ms;
    Tensors x{filled(1)};
    const auto work = pg->allreduce(x, options);
    EXPECT_ERROR(OperationTimeoutError, work->wait(), "rank 1");
    EXPECT_TRUE(work->isCompleted());
    EXPECT_FALSE(work->isSuccess());
    EXPECT_NE(work->exception(), nullptr);
    const auto future = work->getFuture();
    EXPECT_TRUE(future->hasError());
    EXPECT_ERROR(OperationTimeoutError, std::rethrow_exception(future->exception_ptr()), "rank 1");
    is_over.count_down();
  });
}

TEST(ToC10dErrors, ArgumentsAreRefusedAndNothingIsLost) {
  with_torch_threads(1, [](const ProcessGroupPtr& group) {
    const auto pg = to_c10d(group);
    Tensors two{filled(1), filled(2)};
    EXPECT_ERROR(ValueError, pg->broadcast(two), "one tensor for each rank");
    Tensors gaps{torch::zeros({4, 4}).slice(1, 0, 4, 2)};
    EXPECT_ERROR(ValueError, pg->allreduce(gaps), "");
    c10d::BroadcastOptions nobody;
    nobody.rootRank = 7;
    Tensors one{filled(1)};
    EXPECT_ERROR(ValueError, pg->broadcast(one, nobody), "7");
    pg->allreduce(one)->wait();
    EXPECT_ERROR(ValueError, to_c10d(ProcessGroupPtr()), "no group");
    EXPECT_ERROR(ValueError, to_c10d(StorePtr()), "no store");
  });
}

TEST(ToC10dErrors, WaitingCanBeLimited) {
  with_torch_threads(2, [](const ProcessGroupPtr& group) {
    const auto pg = to_c10d(group);
    if (group->rank() == 0) {
      const auto work = pg->barrier();
      EXPECT_ERROR(OperationTimeoutError, work->wait(10ms), "continues");
      Tensors ready{filled(1)};
      pg->send(ready, 1, 0)->wait();
      work->wait();
    } else {
      Tensors ready{filled(0)};
      pg->recv(ready, 0, 0)->wait();
      pg->barrier()->wait();
    }
  });
}

TEST(ToC10dGroup, IsKnownAgain) {
  with_torch_threads(1, [](const ProcessGroupPtr& group) {
    const auto pg = to_c10d(group);
    EXPECT_EQ(group_behind(*pg), group);
    EXPECT_EQ(pg->getBackendName(), "cohort");
    EXPECT_TRUE(wants_group_memory(*pg));
    EXPECT_FALSE(wants_group_memory(*to_c10d(group, {.group_memory = false})));
    Tensors x{filled(1)};
    const auto before = pg->getSequenceNumberForGroup();
    pg->allreduce(x)->wait();
    EXPECT_EQ(pg->getSequenceNumberForGroup(), before + 1);
  });
}

TEST(ToC10dGroup, RaisesTheVersionOfWhatIsWritten) {
  with_torch_threads(1, [](const ProcessGroupPtr& group) {
    const auto pg = to_c10d(group);
    Tensors x{filled(1)};
    const auto version = x[0]._version();
    pg->allreduce(x)->wait();
    EXPECT_GT(x[0]._version(), version);
  });
}

#if COHORT_TORCH_HAS_C10D_BACKEND
TEST_P(ToC10d, CoalescingScopes) {
  on_ranks([](const C10dPtr& pg, int rank, int size) {
    Tensors x{filled(1)};
    Tensors y{filled(rank)};
    pg->startCoalescing();
    const auto early = pg->allreduce(x);
    pg->broadcast(y);
    EXPECT_ERROR(Error, early->wait(), "coalescing");
    pg->endCoalescing()->wait();
    early->wait();
    expect_filled(x[0], size);
    expect_filled(y[0], 0);
  });
}

TEST(ToC10dGroup, AllocatesTensorsInMemoryOfTheGroup) {
  with_torch_threads(1, [](const ProcessGroupPtr& group) {
    const auto allocate = [](auto& pg) {
      if constexpr (requires { pg.supportsTensorAlloc(-1); }) {  // since 2.7
        EXPECT_TRUE(pg.supportsTensorAlloc(-1));
        EXPECT_EQ(pg.allocateTensor(1000, at::TensorOptions(at::kFloat)).numel(), 1000);
      }
    };
    allocate(*to_c10d(group));
  });
}
#endif

/// What both directions promise of stores.
void expect_a_store(Store& store) {
  store.set("a", "1");
  EXPECT_EQ(store.get("a"), "1");
  EXPECT_EQ(store.add("n", 5), 5);
  EXPECT_EQ(store.add("n", -2), 3);
  EXPECT_EQ(store.compare_set("c", "", "x"), "x");
  EXPECT_EQ(store.compare_set("c", "y", "z"), "x");
  EXPECT_TRUE(store.check({"a", "c"}));
  EXPECT_FALSE(store.check({"a", "missing"}));
  EXPECT_EQ(store.multi_get({"a", "c"}), (std::vector<std::string>{"1", "x"}));
  store.multi_set({"k", "l"}, {std::string("\0\xff", 2), ""});
  EXPECT_EQ(store.get("k"), std::string("\0\xff", 2));
  EXPECT_EQ(store.get("l"), "");
  EXPECT_TRUE(store.delete_key("a"));
  EXPECT_FALSE(store.check({"a"}));
  EXPECT_ERROR(StoreTimeoutError, store.get("never", 30ms), "never");
  EXPECT_ERROR(StoreTimeoutError, store.wait({"never"}, 30ms), "never");
  EXPECT_EQ(store.clone()->get("c"), "x");
  store.wait({"c"}, no_timeout);
}

#if COHORT_TORCH_HAS_C10D_BACKEND
/// Templates, for what versions of c10d do not have.
template <class Backend>
void expect_to_shrink(Backend& pg, int rank) {
  if constexpr (requires { pg.shrink({0}); }) {
    ASSERT_TRUE(pg.supportsShrinking());
    if (rank == 1) return;
    const auto remaining = pg.shrink({1});
    EXPECT_EQ(remaining->getRank(), rank / 2);
    EXPECT_EQ(remaining->getSize(), 2);
    Tensors x{filled(rank)};
    remaining->allreduce(x)->wait();
    expect_filled(x[0], 2);
    // That group can be split in its turn.
    const auto store = to_c10d(std::make_shared<HashStore>());
    const auto alone = remaining->split(store, {rank / 2}, remaining->getBackendOptions());
    ASSERT_TRUE(alone);
    EXPECT_EQ(alone->getSize(), 1);
    EXPECT_FALSE(remaining->split(store, {1 - rank / 2}, nullptr));
    Tensors y{filled(1)};
    EXPECT_THROW(pg.allreduce(y)->wait(), std::exception) << "the group has been shrunk";
  }
}

TEST(ToC10dGroup, IsShrunkAndSplitByC10d) {
  with_torch_threads(3, [](const ProcessGroupPtr& group) {
    const auto pg = to_c10d(group);
    expect_to_shrink(*pg, group->rank());
  });
}

TEST(ToC10dGroup, IsHeldAsTheCallerSays) {
  with_torch_threads(2, [](const ProcessGroupPtr& group) {
    std::atomic<int> held = 0;
    const auto pg = to_c10d(group, {.hold = [&](ProcessGroupPtr each) {
                              ++held;
                              return each;
                            }});
    EXPECT_EQ(held, 1);
    EXPECT_EQ(group_behind(*pg), group);
  });
}
#endif

TEST(C10dStores, OfCohortSurviveTheWayThereAndBack) {
  const auto own = std::make_shared<HashStore>();
  const auto back = from_c10d(to_c10d(own));
  expect_a_store(*back);
  EXPECT_EQ(own->get("c"), "x");
}

TEST(C10dStores, OfPyTorchHoldAGroupTogether) {
  const auto theirs = c10::make_intrusive<c10d::PrefixStore>("test", to_c10d(std::make_shared<HashStore>()));
  as_threads(3, [&](int rank) {
    const auto group = new_group("thread", patient, "cpu", {}, {.store = from_c10d(theirs), .rank = rank, .size = 3});
    std::vector<int> x{1};
    group->all_reduce(x);
    EXPECT_EQ(x[0], 3);
  });
}

TEST(C10dStores, NullIsRefused) {
  EXPECT_ERROR(ValueError, from_c10d(c10::intrusive_ptr<c10d::Store>()), "no store");
}

TEST(EmptyInGroup, GivesMemoryOfTheGroup) {
  with_torch_threads(2, [](const ProcessGroupPtr& group) {
    auto x = empty_in_group(*group, {3, 1024}, at::TensorOptions(at::kDouble));
    EXPECT_EQ(x.sizes(), (std::vector<std::int64_t>{3, 1024}));
    expect_filled(x, 0);
    x.fill_(group->rank() + 1);
    group->all_reduce(x);
    expect_filled(x, 3);
    EXPECT_EQ(empty_in_group(*group, {0}).numel(), 0);
    EXPECT_ERROR(ValueError, empty_in_group(*group, {-1}), "-1");
    EXPECT_ERROR(ValueError, empty_in_group(*group, {1LL << 40, 1LL << 40}), "too large");
  });
}

}  // namespace
}  // namespace cohort::test

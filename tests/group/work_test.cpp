// SPDX-License-Identifier: BSD-3-Clause
#include <cohort/work.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <csignal>
#include <future>
#include <latch>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "group/breakable_ranks.h"
#include "group/gate.h"
#include "support/expect_error.h"
#include "support/groups.h"

namespace cohort::test {
namespace {

using namespace std::chrono_literals;

// --- waiting and asking

TEST(Work, OfNothingIsCompleted) {
  const Work work;
  EXPECT_TRUE(work.is_completed());
  EXPECT_TRUE(work.is_success());
  EXPECT_NO_THROW(work.wait());
  EXPECT_NO_THROW(work.wait(1ms));
  EXPECT_EQ(work.exception(), nullptr);
  EXPECT_TRUE(work.result().empty());
  EXPECT_TRUE(work.future().value().empty());
}

TEST(Work, WaitThatExpiresLeavesTheOperationRunning) {
  const GatedGroup gated;
  std::vector<int> x(3);
  const auto work = gated.group->all_reduce(x, {.async_op = true});
  const auto took = time_of([&] { EXPECT_ERROR(OperationTimeoutError, work.wait(50ms), "50 ms"); });
  EXPECT_GE(took, 50ms);
  EXPECT_FALSE(work.is_completed());
  EXPECT_FALSE(work.is_success());
  EXPECT_EQ(work.exception(), nullptr);
  EXPECT_ERROR(OperationTimeoutError, work.wait(1ms), "all_reduce");
  EXPECT_ERROR(Error, work.result(), "not ended");
  gated.gate().open();
  work.wait(60s);
  work.wait();
  EXPECT_TRUE(work.is_success());
}

TEST(Work, CompletionIsSeenWithoutWaiting) {
  const GatedGroup gated;
  std::vector<int> x(3);
  const auto work = gated.group->all_reduce(x, {.async_op = true});
  gated.gate().await_arrivals(1);
  EXPECT_FALSE(work.is_completed());
  gated.gate().open();
  while (!work.is_completed()) std::this_thread::yield();
  EXPECT_TRUE(work.is_success());
}

TEST(Work, ErrorIsRethrownByEachWait) {
  const GatedGroup gated;
  std::vector<int> x(3);
  const auto work = gated.group->broadcast(x, {.async_op = true});
  const auto copy = work;
  for (int i = 0; i < 3; ++i) {
    EXPECT_ERROR(BackendError, work.wait(), "broken on purpose");
    EXPECT_ERROR(BackendError, copy.wait(1s), "broken on purpose");
  }
  EXPECT_TRUE(work.is_completed());
  EXPECT_FALSE(work.is_success());
  ASSERT_NE(work.exception(), nullptr);
  EXPECT_ERROR(BackendError, std::rethrow_exception(work.exception()), "broken on purpose");
  EXPECT_ERROR(BackendError, work.result(), "broken on purpose");
  EXPECT_NO_THROW(gated.group->barrier()) << "what others do with the group is the backend's to decide";
}

TEST(Work, ErrorOfADeadPeerIsRethrownByEachWait) {
  const TemporaryFolder folder;
  const auto join = [&](int rank) {
    return new_group("shm", patient, "cpu", {},
                     {.store = std::make_shared<FileStore>(folder / "store"), .rank = rank, .size = 2});
  };
  Process survivor([&] {
    const auto group = join(0);
    std::vector<int> x(3);
    const auto work = group->all_reduce(x, {.async_op = true});
    while (!work.is_completed()) std::this_thread::yield();
    for (int i = 0; i < 3; ++i) {
      EXPECT_ERROR(PeerLostError, work.wait(), "rank 1");
    }
    EXPECT_FALSE(work.is_success());
    return 0;
  });
  Process victim([&] {
    const auto group = join(1);
    static_cast<void>(std::raise(SIGKILL));
    return 0;
  });
  EXPECT_EQ(victim.wait(), 128 + SIGKILL);
  EXPECT_EQ(survivor.wait(), 0);
}

TEST(Work, OperationAndSequenceNumber) {
  with_threads(2, [](const ProcessGroupPtr& group) {
    std::vector<int> x(4);
    std::vector<int> y(8);
    const int other = 1 - group->rank();
    std::vector<Work> works;
    works.push_back(group->all_reduce(x));
    works.push_back(group->all_gather(y, x, {.async_op = true}));
    works.push_back(group->broadcast(x, {.async_op = true}));
    works.push_back(group->barrier({.async_op = true}));
    works.push_back(group->reduce_scatter(x, y));
    const std::vector<OpType> ops{OpType::all_reduce, OpType::all_gather_single, OpType::broadcast, OpType::barrier,
                                  OpType::reduce_scatter_single};
    for (std::size_t i = 0; i < works.size(); ++i) {
      works[i].wait();
      EXPECT_EQ(works[i].op(), ops[i]);
      EXPECT_EQ(works[i].sequence(), i + 1);
    }
    // Point-to-point operations have their own sequence numbers.
    const auto sending = group->send(x, other, {.async_op = true});
    const auto receiving = group->recv(x, other, {.async_op = true});
    sending.wait();
    receiving.wait();
    EXPECT_EQ(sending.op(), OpType::send);
    EXPECT_EQ(sending.sequence(), 1U);
    EXPECT_EQ(receiving.op(), OpType::recv);
    EXPECT_EQ(receiving.sequence(), 2U);
    EXPECT_EQ(group->barrier().sequence(), 6U);
  });
}

TEST(Work, SourceRankIsForReceives) {
  with_threads(3, [](const ProcessGroupPtr& group) {
    std::vector<int> x{group->rank()};
    if (group->rank() == 0) {
      std::vector<int> y{-1};
      const auto blocking = group->recv_any_source(y);
      EXPECT_EQ(blocking.source_rank(), y[0]);
      const auto later = group->recv_any_source(y, {.async_op = true});
      later.wait();
      EXPECT_EQ(later.source_rank(), y[0]);
      EXPECT_EQ(blocking.source_rank() + later.source_rank(), 3);
    } else {
      EXPECT_THROW(group->send(x, 0).source_rank(), Error);
    }
    EXPECT_THROW(group->all_reduce(x).source_rank(), Error);
  });
  const GatedGroup gated;
  std::vector<int> x(3);
  const auto receiving = gated.group->recv(x, 0, {.async_op = true});
  EXPECT_ERROR(Error, receiving.source_rank(), "not ended");
  gated.gate().open();
  receiving.wait();
  EXPECT_EQ(receiving.source_rank(), 0);
}

// --- results

/// The addresses of the outputs that result() returns, for blocking and asynchronous operations.
using Addresses = std::vector<const void*>;

Addresses addresses(const std::vector<Buffer>& buffers) {
  Addresses all;
  for (const auto& buffer : buffers) all.push_back(buffer.data());
  return all;
}

TEST(Work, ResultsOfEachOperation) {
  with_threads(2, [](const ProcessGroupPtr& group) {
    const bool is_root = group->rank() == 0;
    const int other = 1 - group->rank();
    std::vector<int> a(2);
    std::vector<int> b(2);
    std::vector<int> c(4);
    std::vector<int> d(4);
    const auto check = [&](const std::string& what, const Addresses& expected, const auto& call) {
      for (const bool async_op : {false, true}) {
        const Work work = call(async_op);
        work.wait();
        EXPECT_EQ(addresses(work.result()), expected) << what << async_op;
        EXPECT_EQ(addresses(work.future().value()), expected) << what << async_op;
        EXPECT_EQ(work.then([](const std::vector<Buffer>& outputs) { return outputs.size(); }).value(), expected.size())
            << what << async_op;
      }
    };
    const Addresses only_a{a.data()};
    const Addresses a_and_b{a.data(), b.data()};
    const Addresses none;
    check("all_reduce", only_a, [&](bool async_op) { return group->all_reduce(a, {.async_op = async_op}); });
    check("all_reduce of a list", a_and_b, [&](bool async_op) {
      return group->all_reduce({a, b}, {.async_op = async_op});
    });
    check("all_reduce_coalesced", {a.data(), c.data()}, [&](bool async_op) {
      return group->all_reduce_coalesced({a, c}, {.async_op = async_op});
    });
    check("reduce", only_a, [&](bool async_op) { return group->reduce(a, {.async_op = async_op}); });
    check("broadcast", only_a, [&](bool async_op) { return group->broadcast(a, {.async_op = async_op}); });
    check("all_gather", {c.data()}, [&](bool async_op) { return group->all_gather(c, a, {.async_op = async_op}); });
    check("all_gather into a list", a_and_b, [&](bool async_op) {
      return group->all_gather({a, b}, a, {.async_op = async_op});
    });
    check("all_gather_coalesced", {c.data(), d.data()}, [&](bool async_op) {
      return group->all_gather_coalesced({c, d}, {a, b}, {.async_op = async_op});
    });
    check("gather", is_root ? a_and_b : none, [&](bool async_op) {
      return group->gather(is_root ? BufferList{a, b} : BufferList{}, a, {.async_op = async_op});
    });
    check("scatter", only_a, [&](bool async_op) {
      return group->scatter(a, is_root ? ConstBufferList{a, b} : ConstBufferList{}, {.async_op = async_op});
    });
    check("reduce_scatter", only_a, [&](bool async_op) { return group->reduce_scatter(a, c, {.async_op = async_op}); });
    check("reduce_scatter of a list", only_a, [&](bool async_op) {
      return group->reduce_scatter(a, {a, b}, {.async_op = async_op});
    });
    check("all_to_all", {c.data()}, [&](bool async_op) { return group->all_to_all(c, d, {.async_op = async_op}); });
    check("barrier", none, [&](bool async_op) { return group->barrier({.async_op = async_op}); });
    check("send", none, [&](bool async_op) { return group->send(a, other, {.async_op = async_op}); });
    check("recv", only_a, [&](bool async_op) { return group->recv(a, other, {.async_op = async_op}); });
  });
}

TEST(Work, ResultIsThereWithoutWait) {
  with_threads(2, [](const ProcessGroupPtr& group) {
    std::vector<int> piece(2, -1);
    std::vector<int> whole{1, 2, 3, 4};
    const auto work = group->reduce_scatter(piece, whole, {.async_op = true});
    while (!work.is_completed()) std::this_thread::yield();
    EXPECT_EQ(piece, group->rank() == 0 ? (std::vector{2, 4}) : (std::vector{6, 8}));
  });
}

// --- continuations

TEST(Continuations, Chain) {
  const GatedGroup gated;
  std::vector<int> x{5};
  const auto work = gated.group->all_reduce(x, {.async_op = true});
  std::atomic<int> steps{0};
  const auto text = work.then([&](const std::vector<Buffer>& outputs) {
                          ++steps;
                          return *static_cast<const int*>(outputs.at(0).data());
                        })
                        .then([&](int value) {
                          ++steps;
                          return std::to_string(value * 2);
                        });
  const auto nothing = text.then([&](const std::string& /*text*/) { ++steps; }).then([&] { ++steps; });
  EXPECT_EQ(steps, 0);
  EXPECT_FALSE(text.is_done());
  EXPECT_ERROR(OperationTimeoutError, text.value(10ms), "10 ms");
  gated.gate().open();
  EXPECT_EQ(text.value(60s), "10");
  nothing.value(60s);
  EXPECT_EQ(steps, 4);
  // The continuation of a completed Work runs at once, on this thread.
  const auto here = std::this_thread::get_id();
  EXPECT_EQ(work.then([](const auto&) { return std::this_thread::get_id(); }).value(), here);
}

TEST(Continuations, ErrorsGoDownTheChain) {
  const GatedGroup gated;
  std::vector<int> x{5};
  std::atomic<bool> was_called{false};
  const auto after =
      gated.group->broadcast(x, {.async_op = true}).then([&](const auto&) { was_called = true; }).then([&] {
        was_called = true;
        return 3;
      });
  EXPECT_ERROR(BackendError, after.value(60s), "broken on purpose");
  EXPECT_ERROR(BackendError, after.value(), "broken on purpose");
  EXPECT_NE(after.exception(), nullptr);
  EXPECT_FALSE(was_called);

  const auto thrown = gated.group->barrier({.async_op = true})
                          .then([](const auto&) -> int { throw ValueError("from a step"); })
                          .then([](int value) { return value; });
  EXPECT_ERROR(ValueError, thrown.value(60s), "from a step");

  std::promise<bool> told;
  gated.group->broadcast(x, {.async_op = true}).future().on_done([&](const auto& future) {
    told.set_value(future.exception() != nullptr);
  });
  EXPECT_TRUE(told.get_future().get());
}

TEST(Continuations, CollectAll) {
  const GatedGroup gated;
  std::vector<int> x{1};
  std::vector<int> y{2};
  const auto first = [](const std::vector<Buffer>& outputs) { return *static_cast<const int*>(outputs[0].data()); };
  const auto second = gated.group->all_reduce(y, {.async_op = true});
  const auto third = gated.group->all_reduce(x, {.async_op = true});
  const auto all = collect_all<int>({second.then(first), third.then(first)});
  EXPECT_FALSE(all.is_done());
  gated.gate().open();
  EXPECT_THAT(all.value(60s), ::testing::ElementsAre(2, 1));
  EXPECT_TRUE(collect_all<int>({}).value().empty());

  const auto failing = collect_all<int>({gated.group->all_reduce(y, {.async_op = true}).then(first),
                                         gated.group->broadcast(y, {.async_op = true}).then(first)});
  EXPECT_ERROR(BackendError, failing.value(60s), "broken on purpose");
}

TEST(Continuations, NeverRunOnTheThreadThatMakesProgress) {
  const GatedGroup gated;
  std::vector<int> x(1);
  Gate slow;
  const auto work = gated.group->all_reduce(x, {.async_op = true});
  const auto blocked = work.then([&](const auto&) { slow.pass(Deadline::never()); });
  gated.gate().open();
  slow.await_arrivals(1);
  // While the continuation is blocked, operations make progress.
  for (int i = 0; i < 3; ++i) gated.group->all_reduce(x, {.async_op = true}).wait();
  gated.group->recv(x, 0, {.async_op = true}).wait();
  EXPECT_FALSE(blocked.is_done());
  slow.open();
  blocked.value(60s);
}

TEST(Continuations, MayIssueOperationsOfTheirGroup) {
  with_threads(2, [](const ProcessGroupPtr& group) {
    std::vector<int> x{1};
    std::vector<int> y{0};
    const auto work = group->all_reduce(x, {.async_op = true});
    const auto chained = work.then([&](const auto&) {
      y[0] = x[0] * 10;
      group->all_reduce(y);
      return y[0];
    });
    EXPECT_EQ(chained.value(60s), 40);
  });
}

TEST(Continuations, MayDestroyTheirGroup) {
  for (int i = 0; i < 20; ++i) {
    auto gated = std::make_unique<GatedGroup>();
    std::vector<int> x(1);
    auto work = gated->group->all_reduce(x, {.async_op = true});
    const auto gone = work.then([group = std::move(gated->group)](const auto&) mutable {
      const std::weak_ptr<ProcessGroup> watch = group;
      group.reset();
      return watch.expired();
    });
    gated->gate().open();
    EXPECT_TRUE(gone.value(60s));
    work.wait();
  }
}

TEST(Continuations, MayDestroyARealGroup) {
  for (int i = 0; i < 5; ++i) {
    with_threads(2, [](const ProcessGroupPtr& group) {
      // The caller's handle is destroyed when this returns; whichever handle is last destroys the group.
      std::vector<int> x{1};
      std::vector<int> y{1};
      auto handle = std::make_shared<ProcessGroupPtr>(group->split_group({0, 1}));
      auto& child = **handle;
      auto work = child.all_reduce(x, {.async_op = true});
      auto next = child.all_reduce(y, {.async_op = true});
      work.then([handle](const auto&) { handle->reset(); }).value(60s);
      next.wait();
      EXPECT_EQ(y[0], 2);
    });
  }
}

// --- memory

TEST(WorkMemory, DroppingTheLastWorkOfBorrowedMemoryWaits) {
  const GatedGroup gated;
  std::vector<int> x(3);
  auto work = std::make_unique<Work>(gated.group->all_reduce(x, {.async_op = true}));
  auto copy = std::make_unique<Work>(*work);
  work.reset();  // not the last copy
  EXPECT_FALSE(copy->is_completed());
  gated.gate().await_arrivals(1);
  std::atomic<bool> is_dropped{false};
  std::thread dropper([&] {
    copy.reset();
    is_dropped = true;
  });
  // The only sign that a thread waits is that it does not return.
  for (int i = 0; i < 20 && !is_dropped; ++i) std::this_thread::sleep_for(2ms);
  EXPECT_FALSE(is_dropped);
  gated.gate().open();
  dropper.join();
}

TEST(WorkMemory, ThatWaitIsBoundedByTheOperationsDeadline) {
  const GatedGroup gated;
  std::vector<int> x(3);
  const auto took = time_of([&] { gated.group->all_reduce(x, {.async_op = true, .timeout = 100ms}); });
  EXPECT_GE(took, 95ms);
  EXPECT_LT(took, 10s);
}

TEST(WorkMemory, KeptAliveMemoryDetaches) {
  const GatedGroup gated;
  auto memory = std::make_shared<std::vector<int>>(3);
  const std::weak_ptr<std::vector<int>> watch = memory;
  // This would never return if it waited, because the gate is opened afterwards.
  gated.group->all_reduce(Buffer(memory->data(), DType::i32, {3}, {}, {}, memory), {.async_op = true});
  memory.reset();
  EXPECT_FALSE(watch.expired()) << "the operation uses it";
  gated.gate().open();
  gated.group->wait_for_pending();
  while (!watch.expired()) std::this_thread::yield();  // the thread that ran the operation releases it a moment later
}

TEST(WorkMemory, KeptAliveInputsDetachToo) {
  with_threads(2, [](const ProcessGroupPtr& group) {
    auto memory = std::make_shared<std::vector<int>>(100'000, group->rank());
    const std::weak_ptr<std::vector<int>> watch = memory;
    const int other = 1 - group->rank();
    group->send(ConstBuffer(memory->data(), DType::i32, {100'000}, {}, {}, memory), other, {.async_op = true});
    memory.reset();
    std::vector<int> in(100'000);
    group->recv(in, other);
    EXPECT_EQ(in, std::vector<int>(100'000, other));
    group->wait_for_pending();
    group->barrier();
    while (!watch.expired()) std::this_thread::yield();
  });
}

TEST(WorkMemory, ResultsKeepTheMemoryAlive) {
  with_threads(2, [](const ProcessGroupPtr& group) {
    auto memory = std::make_shared<std::vector<int>>(2, 7);
    auto work = group->all_reduce(Buffer(memory->data(), DType::i32, {2}, {}, {}, memory), {.async_op = true});
    memory.reset();
    work.wait();
    const auto result = work.result();
    work = Work();
    EXPECT_EQ(static_cast<const int*>(result.at(0).data())[1], 14);
  });
}

// --- not blocking

TEST(Async, NeverBlocksTheCaller) {
  // The peer does nothing until this rank has issued all operations.
  std::latch issued(1);
  with_threads(2, [&](const ProcessGroupPtr& group) {
    constexpr std::size_t count = 100'000;
    std::vector<std::vector<int>> buffers(50, std::vector<int>(count, 1));
    std::vector<int> out(count, 1);
    std::vector<int> in(count);
    const int other = 1 - group->rank();
    if (group->rank() == 1) issued.wait();
    std::vector<Work> works;
    works.reserve(buffers.size());
    for (auto& buffer : buffers) works.push_back(group->all_reduce(buffer, {.async_op = true}));
    works.push_back(group->barrier({.async_op = true}));
    works.push_back(group->send(out, other, {.async_op = true}));
    works.push_back(group->recv(in, other, {.async_op = true}));
    if (group->rank() == 0) {
      for (const auto& work : works) EXPECT_FALSE(work.is_completed());
      EXPECT_EQ(group->sequence_number(), 51U);
      issued.count_down();
    }
    for (const auto& work : works) work.wait();
    for (const auto& buffer : buffers) ASSERT_EQ(buffer.back(), 2);
    EXPECT_EQ(in, out);
  });
}

TEST(Async, BlockingOperationsTakeTheirTurnBehindQueuedOnes) {
  with_threads(2, [](const ProcessGroupPtr& group) {
    std::vector<int> x{1};
    for (int i = 0; i < 20; ++i) {
      const auto first = group->all_reduce(x, {.async_op = true});
      const auto second = group->all_reduce(x, {.async_op = true});
      group->all_reduce(x);
      EXPECT_TRUE(first.is_completed());
      EXPECT_TRUE(second.is_completed());
      ASSERT_EQ(x[0], 8);
      x[0] = 1;
    }
    const auto queued = group->all_reduce(x, {.async_op = true});
    group->barrier();
    EXPECT_TRUE(queued.is_completed()) << "what was issued before a barrier is done by then";
  });
}

TEST(Async, WaitingForPendingOperationsTakesATimeout) {
  for (const bool is_receive : {false, true}) {
    const GatedGroup gated;
    std::vector<int> x(1);
    const auto work = is_receive ? gated.group->recv(x, 0, {.async_op = true})
                                 : gated.group->all_reduce(x, {.async_op = true, .timeout = 60s});
    const auto took = time_of([&] {
      EXPECT_ERROR(OperationTimeoutError, gated.group->wait_for_pending(50ms), "wait_for_pending gave up after 50 ms");
      EXPECT_ERROR(OperationTimeoutError, gated.group->shutdown(50ms), "shutdown gave up after 50 ms");
    });
    EXPECT_GE(took, 100ms);
    EXPECT_LT(took, 10s) << "long before the operation's deadline";
    EXPECT_ERROR(AbortedError, gated.group->barrier(), "shut down");
    EXPECT_FALSE(work.is_completed()) << "it goes on";
    gated.gate().open();
    gated.group->shutdown(60s);
    EXPECT_TRUE(work.is_success());
  }
}

TEST(Async, WaitForPending) {
  const GatedGroup gated;
  std::vector<int> x(1);
  const auto good = gated.group->all_reduce(x, {.async_op = true});
  const auto bad = gated.group->broadcast(x, {.async_op = true});
  const auto receiving = gated.group->recv(x, 0, {.async_op = true});
  auto pending = std::async(std::launch::async, [&] { gated.group->wait_for_pending(); });
  EXPECT_EQ(pending.wait_for(10ms), std::future_status::timeout);
  gated.gate().open();
  EXPECT_NO_THROW(pending.get()) << "errors stay with their Work";
  EXPECT_TRUE(good.is_completed());
  EXPECT_TRUE(bad.is_completed());
  EXPECT_TRUE(receiving.is_completed());
}

}  // namespace
}  // namespace cohort::test

// SPDX-License-Identifier: BSD-3-Clause
//
// What the other ranks learn of a failure, through the store: NCCL tells them little, and compares nothing.
#include <cohort/prefix_store.h>
#include <cohort/store_server.h>
#include <cohort/tcp_store.h>

#include <optional>

#include "backends/common/failure_detector.h"
#include "backends/nccl/nccl_test.h"
#include "support/stores.h"

namespace cohort::test {
namespace {

using namespace std::chrono_literals;
using ::testing::AllOf;
using ::testing::HasSubstr;

class NcclPeers : public NcclTest {
 protected:
  StorePtr connect() const {
    return std::make_shared<TcpStore>(TcpStoreOptions{.endpoint = endpoint, .timeout = patient});
  }
  void serve() { server.emplace(StoreServerOptions{.endpoint = endpoint}); }
  void with_two(const GroupBody& body) {
    if (!server) serve();
    as_threads(2, [&](int rank) { body(make(connect(), rank, 2)); });
  }
  /// A process that counts as rank 1 of the first group of this test; `prefix`: of the keys of its failure detector. It
  /// is started before there are threads, as the thread sanitizer asks.
  Process rank_1_elsewhere(const std::string& prefix) const {
    return Process([this, prefix] {
      const auto detector = FailureDetector::start(std::make_shared<PrefixStore>("groups//1" + prefix, connect()), 1, 2,
                                                   Deadline::after(patient), [](const Failure&) {});
      connect()->set("tied", "");
      ::pause();
      return 0;
    });
  }
  /// The error of type E that ends what `issue` begins, and which comes long before the deadline of all tests.
  template <class E>
  static E error_of(const std::function<Work()>& issue) {
    const auto begin = std::chrono::steady_clock::now();
    try {
      issue().wait(patient);
    } catch (const E& e) {
      EXPECT_LT(std::chrono::steady_clock::now() - begin, patient / 2);
      return e;
    }
    ADD_FAILURE() << "it did not fail";
    return E("");
  }

  const Endpoint endpoint = unique_unix_endpoint();
  std::optional<StoreServer> server{};
};

TEST_F(NcclPeers, AMissedDeadlineNamesTheRankThatIsMissingOnAllRanks) {
  with_two([](const ProcessGroupPtr& group) {
    OnDevice<float> x({1});
    group->all_reduce(x.buffer()).wait(patient);
    const auto keys = group->store();
    if (group->rank() == 1) keys->wait({"rank 0 gave up"}, patient);
    const auto timeout = group->rank() == 0 ? 200ms : std::chrono::milliseconds(patient);
    const auto error = error_of<OperationTimeoutError>(
        [&] { return group->broadcast(x.buffer(), {.async_op = true, .timeout = timeout}); });
    EXPECT_EQ(error.context().rank, 1);
    EXPECT_THAT(error.message(),
                AllOf(HasSubstr("broadcast #2 did not end within 200 ms"), HasSubstr("missing: rank 1"),
                      HasSubstr("rank 1 last called all_reduce(sum, f32, 4 bytes) #1")));
    if (group->rank() == 0) keys->set("rank 0 gave up", "");
  });
}

TEST_F(NcclPeers, DifferentOperationsAreAMismatchLongBeforeTheDeadline) {
  gpu.hold_kernels(true);
  with_two([](const ProcessGroupPtr& group) {
    OnDevice<float> x({1});
    std::vector<Work> works;
    // Both go on enqueueing, as programs on a device do.
    for (int i = 0; i < 40; ++i) {
      works.push_back(i == 20 && group->rank() == 1 ? group->broadcast(x.buffer(), {.async_op = true})
                                                    : group->all_reduce(x.buffer(), {.async_op = true}));
    }
    // The first 20 are held back as well, so this says nothing before they are through.
    EXPECT_FALSE(works[0].is_completed());
    group->store()->add("enqueued", 1);
    if (group->rank() == 0) {
      while (group->store()->add("enqueued", 0) < 2) std::this_thread::yield();
      FakeGpu::instance().hold_kernels(false);
    }
    const auto error = error_of<MismatchError>([&] { return works[20]; });
    EXPECT_THAT(error.message(), AllOf(HasSubstr("broadcast(f32, 4 bytes, root 0) #21"),
                                       HasSubstr("all_reduce(sum, f32, 4 bytes) #21")));
    EXPECT_THROW(works[39].wait(patient), MismatchError);
  });
}

TEST_F(NcclPeers, AnAbortIsToldToAllRanks) {
  gpu.hold_kernels(true);
  with_two([](const ProcessGroupPtr& group) {
    OnDevice<float> x({1});
    const auto error = error_of<AbortedError>([&] {
      const auto work = group->all_reduce(x.buffer(), {.async_op = true});
      if (group->rank() == 1) group->abort("enough");
      return work;
    });
    EXPECT_EQ(error.context().rank, 1);
    EXPECT_THAT(error.message(), HasSubstr("rank 1 aborted the group: enough"));
    EXPECT_THROW(group->all_reduce(x.buffer()), AbortedError);
  });
}

TEST_F(NcclPeers, ARankThatDiesIsNamed) {
  const auto rank_1 = rank_1_elsewhere("");
  gpu.hold_kernels(true);
  with_two([&](const ProcessGroupPtr& group) {
    OnDevice<float> x({1});
    const auto error = error_of<PeerLostError>([&] {
      const auto work = group->all_reduce(x.buffer(), {.async_op = true});
      if (group->rank() == 0) {
        connect()->wait({"tied"}, patient);
        rank_1.signal(SIGKILL);
      }
      return work;
    });
    EXPECT_EQ(error.context().rank, 1);
    EXPECT_THAT(error.message(), HasSubstr("rank 1 is gone"));
  });
}

TEST_F(NcclPeers, ARankThatDiesWhileTheGroupIsMadeIsNamed) {
  const auto rank_1 = rank_1_elsewhere("/joining");
  serve();
  const auto store = connect();
  store->wait({"tied"}, patient);
  rank_1.signal(SIGKILL);
  try {
    make(store, 0, 2);
    ADD_FAILURE() << "there is nobody to make it with";
  } catch (const PeerLostError& e) {
    EXPECT_EQ(e.context().rank, 1);
  }
  EXPECT_EQ(gpu.count("abort"), 1);
}

TEST_F(NcclPeers, ARankThatHasLeftIsNamed) {
  with_two([](const ProcessGroupPtr& group) {
    OnDevice<float> x({1});
    group->all_reduce(x.buffer()).wait(patient);
    if (group->rank() == 1) {
      group->shutdown();
      return group->store()->set("has left", "");
    }
    group->store()->wait({"has left"});
    const auto error =
        error_of<PeerLostError>([&] { return group->all_reduce(x.buffer(), {.async_op = true, .timeout = 300ms}); });
    EXPECT_EQ(error.context().rank, 1);
    EXPECT_THAT(error.message(), HasSubstr("rank 1 has left the group"));
  });
}

TEST_F(NcclPeers, ALateMessageNamesItsPeerAndNobodyElse) {
  with_two([](const ProcessGroupPtr& group) {
    OnDevice<float> x({1});
    const auto error = error_of<OperationTimeoutError>([&] {
      return group->rank() == 0 ? group->recv(x.buffer(), 1, {.async_op = true, .timeout = 200ms})
                                : group->all_reduce(x.buffer(), {.async_op = true});
    });
    EXPECT_EQ(error.context().rank, 1);
    EXPECT_THAT(error.message(), AllOf(HasSubstr("recv #"), ::testing::Not(HasSubstr("missing"))));
  });
}

TEST_F(NcclPeers, GroupsThatWereSplitOffTellTheirOwnRanks) {
  with_two([](const ProcessGroupPtr& group) {
    const auto pair = group->split_group({1, 0});
    OnDevice<float> x({1});
    pair->all_reduce(x.buffer()).wait(patient);
    if (pair->rank() == 0) pair->abort("done with it");
    const auto error = error_of<AbortedError>([&] { return pair->all_reduce(x.buffer(), {.async_op = true}); });
    EXPECT_THAT(error.message(), HasSubstr("rank 0 aborted the group: done with it"));
    group->all_reduce(x.buffer()).wait(patient);
    EXPECT_EQ(x.values()[0], 4) << "the group itself works";
  });
}

}  // namespace
}  // namespace cohort::test

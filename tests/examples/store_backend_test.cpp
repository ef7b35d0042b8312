// SPDX-License-Identifier: BSD-3-Clause
//
// What the tutorial's backend promises beyond the conformance tests (tests/conformance): which errors it throws, that
// it ends in time, and that it leaves nothing in the store.
#include "../../examples/store_backend.h"

#include <cohort/hash_store.h>
#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "support/expect_error.h"
#include "support/ranks.h"

namespace cohort::test {
namespace {

using namespace std::chrono_literals;

class StoreBackend : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { example::register_store_backend(); }

  ProcessGroupPtr join(int rank, int size, const Options& options = {}) const {
    return new_group("store", 30s, "cpu", options, {.store = store_, .rank = rank, .size = size});
  }

  std::shared_ptr<HashStore> store_ = std::make_shared<HashStore>();
};

TEST_F(StoreBackend, MovesMoreThanOneChunk) {
  as_threads(3, [&](int rank) {
    const auto group = join(rank, 3, {{"chunk_bytes", 100}});
    std::vector<double> x(1000, rank + 1);
    group->all_reduce(x, {.op = ReduceOp::avg()});
    EXPECT_EQ(x, std::vector<double>(1000, 2));
  });
}

TEST_F(StoreBackend, RefusesOptionsItDoesNotKnow) {
  EXPECT_ERROR(KeyError, join(0, 1, {{"chunk_byte", 100}}), "chunk_bytes");
  EXPECT_ERROR(ValueError, join(0, 1, {{"chunk_bytes", 0}}), "chunk_bytes");
}

TEST_F(StoreBackend, RefusesWhatItsCapabilitiesLeaveOut) {
  const auto group = join(0, 1);
  EXPECT_FALSE(group->capabilities().supports(OpType::recv_any_source));
  std::vector<std::int8_t> x(4);
  EXPECT_ERROR(NotSupportedError, group->all_reduce(x), "i8");
}

TEST_F(StoreBackend, TimeoutNamesTheRankThatIsMissing) {
  as_threads(3, [&](int rank) {
    const auto group = join(rank, 3);
    if (rank == 1) return;
    std::vector<float> x(4);
    try {
      group->all_reduce(x, {.timeout = 200ms});
      ADD_FAILURE() << "no timeout";
    } catch (const OperationTimeoutError& e) {
      EXPECT_EQ(e.context().rank, 1) << e.what();
    }
  });
}

TEST_F(StoreBackend, MismatchNamesTheRankThatDiffers) {
  as_threads(2, [&](int rank) {
    const auto group = join(rank, 2);
    std::vector<float> x(rank == 0 ? 4 : 5);
    EXPECT_ERROR(MismatchError, group->all_reduce(x), "rank " + std::to_string(1 - rank));
  });
}

TEST_F(StoreBackend, AbortFreesTheOthers) {
  as_threads(2, [&](int rank) {
    const auto group = join(rank, 2);
    if (rank == 0) return group->abort("out of patience");
    std::vector<float> x(4);
    const auto took = time_of([&] { EXPECT_ERROR(AbortedError, group->all_reduce(x), "out of patience"); });
    EXPECT_LT(took, 10s);
  });
}

TEST_F(StoreBackend, RemovesItsKeys) {
  as_threads(2, [&](int rank) {
    const auto group = join(rank, 2);
    std::vector<float> x(64);
    group->all_reduce(x);
    group->barrier();
    const auto before = store_->num_keys();
    group->barrier();
    for (int i = 0; i < 10; ++i) group->all_reduce(x);
    group->barrier();
    // Each rank has two marks at most in a barrier, and removes those of the last one in the next.
    EXPECT_LE(store_->num_keys(), before + 8);
  });
}

}  // namespace
}  // namespace cohort::test

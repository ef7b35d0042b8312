// SPDX-License-Identifier: BSD-3-Clause
#include <cohort/store_collectives.h>

#include "support/expect_error.h"
#include "support/ranks.h"
#include "support/stores.h"

namespace cohort::test {
namespace {

using namespace std::chrono_literals;

void run_all(int size, StoreKind& kind) {
  as_threads(size, [&](int rank) {
    StoreCollectives all(kind.open(), rank, size);
    all.barrier("b", 20s);
    EXPECT_EQ(all.all_sum("sum", rank + 1, 20s), size * (size + 1) / 2);
    if (rank == size - 1) {
      all.broadcast_send("cast", "from last", 20s);
    } else {
      EXPECT_EQ(all.broadcast_recv("cast", 20s), "from last");
    }
    std::vector<std::string> everyone;
    for (int r = 0; r < size; ++r) everyone.push_back("rank " + std::to_string(r));
    if (rank == 0) {
      EXPECT_EQ(all.gather_recv("gather", everyone[0], 20s), everyone);
      EXPECT_EQ(all.scatter_send("scatter", everyone, 20s), everyone[0]);
    } else {
      all.gather_send("gather", everyone[static_cast<std::size_t>(rank)], 20s);
      EXPECT_EQ(all.scatter_recv("scatter", 20s), everyone[static_cast<std::size_t>(rank)]);
    }
    EXPECT_EQ(all.all_gather("all", everyone[static_cast<std::size_t>(rank)], 20s), everyone);
  });
}

TEST(StoreCollectivesTest, EveryOperation) {
  for (const int size : {1, 2, 3, 5}) {
    HashKind hash;
    run_all(size, hash);
    TcpKind tcp;
    run_all(size, tcp);
  }
}

TEST(StoreCollectivesTest, OnFiles) {
  FileKind file;
  run_all(3, file);
}

TEST(StoreCollectivesTest, AKeyIsUsedOnce) {
  StoreCollectives all(std::make_shared<HashStore>(), 0, 1);
  all.barrier("k");
  EXPECT_ERROR(ValueError, all.barrier("k"), "used before");
  EXPECT_THROW(all.broadcast_send("k", "v"), ValueError);
}

TEST(StoreCollectivesTest, BarrierNamesWhoIsMissing) {
  const auto store = std::make_shared<HashStore>();
  as_threads(2, [&](int rank) {
    StoreCollectives all(store, rank == 0 ? 0 : 2, 4);
    const auto message = message_of<StoreTimeoutError>([&] { all.barrier("b", 100ms); });
    EXPECT_THAT(message, ::testing::HasSubstr("2 of 4 ranks arrived; missing: 1, 3"));
  });
}

TEST(StoreCollectivesTest, BarrierWithoutBlocking) {
  const auto store = std::make_shared<HashStore>();
  StoreCollectives first(store, 0, 2);
  StoreCollectives second(store, 1, 2);
  first.barrier("b", 1s, false);
  second.barrier("b", 1s);
}

TEST(StoreCollectivesTest, RefusesBadArguments) {
  EXPECT_THROW(StoreCollectives(nullptr, 0, 1), ValueError);
  EXPECT_THROW(StoreCollectives(std::make_shared<HashStore>(), 2, 2), ValueError);
  EXPECT_THROW(StoreCollectives(std::make_shared<HashStore>(), -1, 2), ValueError);
  StoreCollectives all(std::make_shared<HashStore>(), 0, 2);
  EXPECT_ERROR(ValueError, all.scatter_send("s", {"only one"}), "1 values for 2 ranks");
}

}  // namespace
}  // namespace cohort::test

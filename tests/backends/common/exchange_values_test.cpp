// SPDX-License-Identifier: BSD-3-Clause
#include <cohort/hash_store.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "backends/common/joining.h"
#include "support/expect_error.h"
#include "support/ranks.h"

namespace cohort::test {
namespace {

using namespace std::chrono_literals;

/// A store that is asked for one key at a time.
class OneByOne final : public Store {
 public:
  explicit OneByOne(StorePtr inner) : inner_(std::move(inner)) {}
  bool has_extended_api() const override { return false; }
  bool has_queues() const override { return inner_->has_queues(); }
  StorePtr clone() override { return std::make_shared<OneByOne>(inner_->clone()); }

 private:
  StoreReply execute(const StoreRequest& request, Deadline deadline) override {
    EXPECT_LE(request.op == StoreOp::get ? request.keys.size() : 1, 1U);
    return execute_on(*inner_, request, deadline);
  }
  const StorePtr inner_;
};

/// With and without the extended API, which decides who asks for what.
class ExchangedValues : public testing::TestWithParam<bool> {
 protected:
  StorePtr open() const { return GetParam() ? store_ : std::make_shared<OneByOne>(store_); }

 private:
  const StorePtr store_ = std::make_shared<HashStore>();
};
INSTANTIATE_TEST_SUITE_P(Stores, ExchangedValues, testing::Bool(),
                         [](const auto& each) { return each.param ? "AllAtOnce" : "OneByOne"; });

TEST_P(ExchangedValues, AreThoseOfAllRanksInOrder) {
  const std::vector<std::string> values{"", "a:b", std::string("\0\n12:", 5), "3:x"};
  ASSERT_EQ(open()->has_extended_api(), GetParam());
  as_threads(4, [&](int rank) {
    const auto store = open();
    EXPECT_EQ(
        exchange_values(*store, "test", values[static_cast<std::size_t>(rank)], rank, 4, Deadline::after(20s), {}),
        values);
  });
}

TEST_P(ExchangedValues, ARankThatDoesNotComeIsNamed) {
  as_threads(2, [&](int rank) {  // of three
    const auto store = open();
    EXPECT_ERROR(OperationTimeoutError, exchange_values(*store, "test", "x", rank, 3, Deadline::after(100ms), {}),
                 "rank 2 did not join");
  });
}

TEST(CollectedValues, ThatCannotBeReadAreAnError) {
  for (const auto* const text : {"", "1:a", "1:a1:b1:c", "2:a", "x1:a1:b", "1a1:b", "1:a1", "1:a99999999999999999999:b",
                                 "-1:a1:b", "1:a18446744073709551615:b"}) {
    const auto store = std::make_shared<OneByOne>(std::make_shared<HashStore>());
    store->set("test/all", text);
    EXPECT_ERROR(StoreError, exchange_values(*store, "test", "x", 1, 2, Deadline::after(20s), {}), "cannot be read")
        << text;
  }
}

}  // namespace
}  // namespace cohort::test

// SPDX-License-Identifier: BSD-3-Clause
//
// What every store must do, run on each kind of store. The two handles `store` and `other` see the same data.
#include <cohort/error.h>
#include <cohort/prefix_store.h>

#include <future>
#include <map>
#include <thread>

#include "support/expect_error.h"
#include "support/ranks.h"
#include "support/stores.h"

namespace cohort::test {
namespace {

using namespace std::chrono_literals;

using MakeKind = std::function<std::unique_ptr<StoreKind>()>;
const std::map<std::string, MakeKind>& kinds() {
  static const std::map<std::string, MakeKind> all = {
      {"Hash", [] { return std::make_unique<HashKind>(); }},
      {"File", [] { return std::make_unique<FileKind>(); }},
      {"Tcp", [] { return std::make_unique<TcpKind>(); }},
      {"Unix", [] { return std::make_unique<UnixKind>(); }},
      {"Secret", [] { return std::make_unique<SecretKind>(); }},
      {"Prefix", [] { return std::make_unique<PrefixKind>(); }},
  };
  return all;
}

class StoreConformance : public ::testing::TestWithParam<std::string> {
 protected:
  std::unique_ptr<StoreKind> kind = kinds().at(GetParam())();
  StorePtr store = kind->open();
  StorePtr other = kind->open();

  /// Calls `fn` on a thread of its own, and returns when it waits in the store: what the test does next finds it there.
  template <class Fn>
  auto waiting_for(Fn fn) {
    auto waiting = start_waiting(std::move(fn));
    // The caller sleeps, so a server has been sent its request. A server looks at all its connections in turn: it has
    // seen that request when it has answered two that were sent afterwards.
    const auto third = kind->open();
    for (int i = 0; i < 2; ++i) third->check({"settled"});
    EXPECT_EQ(waiting.wait_for(0s), std::future_status::timeout) << "it did not wait";
    return waiting;
  }
};

INSTANTIATE_TEST_SUITE_P(Stores, StoreConformance, ::testing::Values("Hash", "File", "Tcp", "Unix", "Secret", "Prefix"),
                         [](const auto& kind) { return kind.param; });

TEST_P(StoreConformance, SetGetOverwrite) {
  store->set("k", "one");
  EXPECT_EQ(other->get("k"), "one");
  other->set("k", "two");
  EXPECT_EQ(store->get("k"), "two");
}

TEST_P(StoreConformance, ValuesAreBytes) {
  std::string all;
  for (int i = 0; i < 256; ++i) all += static_cast<char>(i);
  store->set("bytes", all);
  EXPECT_EQ(other->get("bytes"), all);
  store->set("empty", "");
  EXPECT_EQ(other->get("empty"), "");
  const std::string key("a\0b/\n\xff", 6);
  store->set(key, "odd key");
  EXPECT_EQ(other->get(key), "odd key");
  const std::string large(3 << 20, 'x');
  store->set("large", large);
  EXPECT_EQ(other->get("large"), large);
}

TEST_P(StoreConformance, GetWaitsForTheKey) {
  auto waiting = waiting_for([this] { return other->get("late"); });
  store->set("late", "now");
  EXPECT_EQ(waiting.get(), "now");
}

TEST_P(StoreConformance, GetTimesOutNamingTheKeyAndStaysUsable) {
  EXPECT_ERROR(StoreTimeoutError, store->get("nobody", 50ms), "nobody");
  store->set("k", "v");
  EXPECT_EQ(store->get("k"), "v");
}

TEST_P(StoreConformance, StoreTimeoutIsTheDefault) {
  store->set_timeout(60ms);
  EXPECT_EQ(store->timeout(), 60ms);
  const auto took = time_of([this] { EXPECT_THROW(store->get("nobody"), StoreTimeoutError); });
  EXPECT_GE(took, 60ms);
  EXPECT_LT(took, 2s);
  EXPECT_THROW(store->set_timeout(-1ms), ValueError);
  EXPECT_THROW(store->set_timeout(0ms), ValueError);
  {
    const StoreTimeoutGuard guard(*store, 7s);
    EXPECT_EQ(store->timeout(), 7s);
  }
  EXPECT_EQ(store->timeout(), 60ms);
}

TEST_P(StoreConformance, NoTimeoutWaitsForever) {
  store->set_timeout(10ms);
  auto waiting = waiting_for([this] { return store->get("eventually", no_timeout); });
  EXPECT_EQ(waiting.wait_for(100ms), std::future_status::timeout) << "the store's timeout does not count";
  other->set("eventually", "yes");
  EXPECT_EQ(waiting.get(), "yes");
  store->set_timeout(no_timeout);
  EXPECT_EQ(store->get("eventually"), "yes");
}

TEST_P(StoreConformance, ATimeoutIsPositive) {
  store->set("there", "");
  EXPECT_ERROR(ValueError, store->get("there", 0ms), "must be positive");
  EXPECT_ERROR(ValueError, store->wait({"there"}, -1s), "must be positive");
  EXPECT_ERROR(ValueError, store->set("unset", "", 0s), "must be positive");
  EXPECT_FALSE(store->check({"unset"}));
}

TEST_P(StoreConformance, AddCreatesAndIncrements) {
  EXPECT_EQ(store->add("n", 5), 5);
  EXPECT_EQ(other->add("n", -7), -2);
  EXPECT_EQ(store->get("n"), "-2");
  store->set("text", "10");
  EXPECT_EQ(other->add("text", 1), 11);
  EXPECT_EQ(store->add("n", 0), -2);
}

TEST_P(StoreConformance, AddWakesWaiters) {
  auto waiting = waiting_for([this] { other->wait({"counter"}, 10s); });
  store->add("counter", 1);
  const auto took = time_of([&] { waiting.get(); });
  EXPECT_LT(took, 5s) << "the waiter must be woken, not find out at its deadline";
}

TEST_P(StoreConformance, AddRejectsTextAndOverflow) {
  for (const auto* const text : {"ten", "", "1.5", " 1", "1 ", "99999999999999999999"}) {
    store->set("k", text);
    EXPECT_THROW(store->add("k", 1), ValueError) << '"' << text << '"';
    EXPECT_EQ(store->get("k"), text);
  }
  store->set("big", std::to_string(std::numeric_limits<std::int64_t>::max()));
  EXPECT_THROW(store->add("big", 1), ValueError);
  EXPECT_EQ(store->add("big", -1), std::numeric_limits<std::int64_t>::max() - 1);
}

TEST_P(StoreConformance, AddIsAtomic) {
  std::vector<StorePtr> handles;
  for (int i = 0; i < 4; ++i) handles.push_back(kind->open());
  as_threads(4, [&](int rank) {
    for (int i = 0; i < 50; ++i) handles[static_cast<std::size_t>(rank)]->add("sum", rank + 1);
  });
  EXPECT_EQ(store->add("sum", 0), 50 * (1 + 2 + 3 + 4));
}

TEST_P(StoreConformance, CompareSetFourCases) {
  // Missing key, something expected: nothing is set, the expectation comes back.
  EXPECT_EQ(store->compare_set("k", "expected", "desired"), "expected");
  EXPECT_FALSE(store->check({"k"}));
  // Missing key, nothing expected: set.
  EXPECT_EQ(store->compare_set("k", "", "first"), "first");
  EXPECT_EQ(other->get("k"), "first");
  // Different: the value that is there.
  EXPECT_EQ(other->compare_set("k", "wrong", "second"), "first");
  EXPECT_EQ(store->get("k"), "first");
  // Equal: set.
  EXPECT_EQ(other->compare_set("k", "first", "second"), "second");
  EXPECT_EQ(store->get("k"), "second");
}

TEST_P(StoreConformance, CompareSetWakesWaiters) {
  auto waiting = waiting_for([this] { return other->get("k", 10s); });
  store->compare_set("k", "", "v");
  const auto took = time_of([&] { EXPECT_EQ(waiting.get(), "v"); });
  EXPECT_LT(took, 5s);
}

TEST_P(StoreConformance, WaitForSeveralKeys) {
  auto waiting = waiting_for([this] { other->wait({"a", "b", "a"}, 10s); });
  store->set("b", "");
  EXPECT_EQ(waiting.wait_for(30ms), std::future_status::timeout);
  store->set("a", "");
  waiting.get();
  store->wait({});
  store->wait({"a", "b"}, 1ms);
}

TEST_P(StoreConformance, WaitIsAccurateAndNamesWhatIsMissing) {
  store->set("there", "");
  const auto took = time_of([this] {
    const auto message = message_of<StoreTimeoutError>([this] { store->wait({"there", "gone"}, 300ms); });
    EXPECT_THAT(message, ::testing::HasSubstr("gone"));
    EXPECT_THAT(message, ::testing::Not(::testing::HasSubstr("there")));
  });
  EXPECT_GE(took, 300ms);
  EXPECT_LT(took, 400ms + 300ms);  // 100 ms, and what a loaded machine adds
}

TEST_P(StoreConformance, AKeyThatComesAndGoesDoesNotCount) {
  auto waiting = waiting_for([this] { other->wait({"a", "b"}, 10s); });
  store->set("a", "");
  store->delete_key("a");
  store->set("b", "");
  EXPECT_EQ(waiting.wait_for(50ms), std::future_status::timeout);
  store->set("a", "");
  waiting.get();
}

TEST_P(StoreConformance, CheckDoesNotWait) {
  EXPECT_TRUE(store->check({}));
  EXPECT_FALSE(store->check({"a"}));
  store->set("a", "");
  EXPECT_TRUE(other->check({"a"}));
  EXPECT_FALSE(other->check({"a", "b"}));
}

TEST_P(StoreConformance, DeleteAndCount) {
  const auto before = store->num_keys();
  store->set("a", "1");
  store->set("b", "2");
  EXPECT_EQ(other->num_keys(), before + 2);
  EXPECT_TRUE(other->delete_key("a"));
  EXPECT_FALSE(store->check({"a"}));
  EXPECT_EQ(store->num_keys(), before + 1);
  EXPECT_EQ(store->delete_key("a"), GetParam() == "File") << "a file store always says true";
  EXPECT_THROW(store->get("a", 20ms), StoreTimeoutError);
}

TEST_P(StoreConformance, WaitingLeavesNoKeyBehind) {
  const auto before = store->num_keys();
  EXPECT_THROW(store->get("never", 10ms), StoreTimeoutError);
  EXPECT_EQ(store->num_keys(), before);
  EXPECT_FALSE(store->check({"never"}));
}

TEST_P(StoreConformance, Append) {
  store->append("log", "a");
  other->append("log", "b");
  store->append("log", "");
  EXPECT_EQ(store->get("log"), "ab");
  auto waiting = waiting_for([this] { return other->get("fresh", 10s); });
  store->append("fresh", "x");
  EXPECT_EQ(waiting.get(), "x");
}

TEST_P(StoreConformance, AppendLosesNothing) {
  std::vector<StorePtr> handles;
  for (int i = 0; i < 3; ++i) handles.push_back(kind->open());
  // Equal pieces: an append made of get and compare_set would lose some of them.
  as_threads(3, [&](int rank) {
    for (int i = 0; i < 20; ++i) handles[static_cast<std::size_t>(rank)]->append("log", "x");
  });
  EXPECT_EQ(store->get("log"), std::string(60, 'x'));
}

TEST_P(StoreConformance, MultiGetAndMultiSet) {
  store->multi_set({"a", "b"}, {"1", "2"});
  EXPECT_THAT(other->multi_get({"b", "a", "b"}), ::testing::ElementsAre("2", "1", "2"));
  EXPECT_TRUE(other->multi_get({}).empty());
  EXPECT_ERROR(StoreError, store->multi_set({"c", "d"}, {"1"}), "2 keys but 1 value");
  EXPECT_FALSE(store->check({"c"}));
  auto waiting = waiting_for([this] { return other->multi_get({"a", "late"}, 10s); });
  store->set("late", "3");
  EXPECT_THAT(waiting.get(), ::testing::ElementsAre("1", "3"));
  const auto took = time_of([this] { EXPECT_THROW(store->multi_get({"x", "y", "z"}, 100ms), StoreTimeoutError); });
  EXPECT_LT(took, 1s) << "one timeout for the lot";
}

TEST_P(StoreConformance, ManyKeysAtOnce) {
  Store::Keys keys;
  Store::Values values;
  for (int i = 0; i < 5000; ++i) {
    keys.push_back("key" + std::to_string(i));
    values.push_back(std::to_string(i));
  }
  auto waiting = waiting_for([&] { return other->multi_get(keys, 30s); });
  store->multi_set(keys, values);
  EXPECT_EQ(waiting.get(), values);
}

TEST_P(StoreConformance, CloneIsIndependent) {
  store->set_timeout(5s);
  const auto clone = store->clone();
  EXPECT_EQ(clone->timeout(), 5s);
  auto blocked = waiting_for([this] { return store->get("from clone", 10s); });
  // The clone is of use while the original blocks, and not only for what the original waits for.
  clone->set("k", "v");
  EXPECT_EQ(clone->get("k"), "v");
  EXPECT_EQ(clone->add("n", 2), 2);
  EXPECT_EQ(blocked.wait_for(0s), std::future_status::timeout);
  clone->set("from clone", "unblocked");
  EXPECT_EQ(blocked.get(), "unblocked");
  EXPECT_EQ(store->get("k"), "v");
}

TEST_P(StoreConformance, ManyThreadsOnOneHandle) {
  as_threads(4, [this](int rank) {
    const auto key = "k" + std::to_string(rank);
    for (int i = 0; i < 30; ++i) {
      store->set(key, std::to_string(i));
      EXPECT_EQ(store->get(key), std::to_string(i));
    }
  });
}

class StoreQueues : public StoreConformance {};
INSTANTIATE_TEST_SUITE_P(Stores, StoreQueues, ::testing::Values("Hash", "Tcp", "Unix", "Prefix"),
                         [](const auto& kind) { return kind.param; });

TEST_P(StoreQueues, FirstInFirstOut) {
  EXPECT_TRUE(store->has_queues());
  EXPECT_EQ(store->queue_len("q"), 0);
  store->queue_push("q", "1");
  other->queue_push("q", "2");
  EXPECT_EQ(store->queue_len("q"), 2);
  EXPECT_EQ(other->queue_pop("q"), "1");
  EXPECT_EQ(store->queue_pop("q", false), "2");
  EXPECT_EQ(store->queue_len("q"), 0);
}

TEST_P(StoreQueues, EmptyAndTimeout) {
  EXPECT_ERROR(QueueEmptyError, store->queue_pop("q", false), "q");
  EXPECT_ERROR(StoreTimeoutError, store->queue_pop("q", true, 50ms), "q");
  store->queue_push("q", "after the timeout");
  EXPECT_EQ(store->queue_pop("q", false), "after the timeout") << "a waiter that left must not swallow a value";
}

TEST_P(StoreQueues, PopWaits) {
  auto waiting = waiting_for([this] { return other->queue_pop("q", true, 10s); });
  store->queue_push("q", "v");
  EXPECT_EQ(waiting.get(), "v");
}

TEST_P(StoreQueues, APushWakesOneWaiter) {
  std::vector<std::future<std::string>> waiting;
  std::vector<StorePtr> handles;
  for (int i = 0; i < 3; ++i) {
    handles.push_back(kind->open());
    waiting.push_back(waiting_for([handle = handles.back()] { return handle->queue_pop("q", true, 10s); }));
  }
  std::multiset<std::string> got;
  for (int i = 0; i < 3; ++i) store->queue_push("q", std::to_string(i));
  for (auto& one : waiting) got.insert(one.get());
  EXPECT_EQ(got, (std::multiset<std::string>{"0", "1", "2"}));
  EXPECT_EQ(store->queue_len("q"), 0);
  // The table of waiters must be clean: the next value is queued, not handed to a ghost.
  store->queue_push("q", "x");
  EXPECT_EQ(store->queue_len("q"), 1);
}

TEST_P(StoreQueues, ApartFromValuesButSeenByWaitAndCheck) {
  store->queue_push("q", "in the queue");
  EXPECT_TRUE(store->check({"q"}));
  store->wait({"q"}, 1s);
  EXPECT_THROW(store->get("q", 30ms), StoreTimeoutError) << "get wants a value, not a queue";
  store->set("q", "value");
  EXPECT_EQ(store->get("q"), "value");
  EXPECT_EQ(store->queue_pop("q"), "in the queue");
  EXPECT_TRUE(store->delete_key("q"));
  EXPECT_FALSE(store->check({"q"}));
  // An empty queue counts as absent.
  store->queue_push("e", "");
  store->queue_pop("e");
  EXPECT_FALSE(store->check({"e"}));
  auto waiting = waiting_for([this] { other->wait({"e"}, 10s); });
  store->queue_push("e", "");
  waiting.get();
}

TEST(FileStoreQueues, AreRefused) {
  FileKind kind;
  const auto store = kind.open();
  EXPECT_FALSE(store->has_queues());
  EXPECT_ERROR(NotSupportedError, store->queue_push("q", "v"), "no queues");
  EXPECT_THROW(store->queue_pop("q"), NotSupportedError);
  EXPECT_THROW(store->queue_len("q"), NotSupportedError);
}

/// The least that a store of one's own has to define. This one is a map in which nobody sets what another waits for.
class MinimalStore final : public Store {
 public:
  bool has_extended_api() const override { return false; }
  bool has_queues() const override { return false; }
  StorePtr clone() override { return nullptr; }

 private:
  StoreReply execute(const StoreRequest& request, Deadline deadline) override {
    EXPECT_EQ(request.keys.size(), 1U);
    const std::string key(request.keys[0]);
    switch (request.op) {
      case StoreOp::set:
        values_[key] = request.values[0];
        return {};
      case StoreOp::get:
        if (values_.contains(key)) return {.values = {values_[key]}};
        std::this_thread::sleep_until(deadline.when());
        throw StoreTimeoutError("no such key");
      case StoreOp::delete_key:
        return {.number = values_.erase(key) > 0 ? 1 : 0};
      default:
        return {};
    }
  }

  std::map<std::string, std::string> values_;
};

TEST(StoreFallbacks, MultiOperationsLoopOverSingleOnes) {
  MinimalStore store;
  store.multi_set({"a", "b"}, {"1", "2"});
  EXPECT_THAT(store.multi_get({"a", "b"}), ::testing::ElementsAre("1", "2"));
  const auto took = time_of([&] { EXPECT_THROW(store.multi_get({"x", "y", "z"}, 100ms), StoreTimeoutError); });
  EXPECT_LT(took, 1s) << "one timeout for the lot, also in the fallback";
  EXPECT_THROW(store.queue_len("q"), NotSupportedError);
}

TEST(StoreOfOnesOwn, NeedsOneFunction) {
  const auto inner = std::make_shared<MinimalStore>();
  PrefixStore store("p", inner);
  store.multi_set({"a", "b"}, {"1", "2"});
  EXPECT_EQ(inner->get("p/b"), "2");
  EXPECT_THAT(store.multi_get({"a", "b"}), ::testing::ElementsAre("1", "2"));
  EXPECT_TRUE(store.delete_key("a"));
  EXPECT_FALSE(store.delete_key("a"));
}

TEST(StoreOfOnesOwn, AReplyWithoutItsValueIsAnError) {
  MinimalStore store;
  EXPECT_ERROR(StoreError, store.compare_set("k", "", "v"), "replied with 0 values where 1 are expected");
}

}  // namespace
}  // namespace cohort::test

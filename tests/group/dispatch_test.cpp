// SPDX-License-Identifier: BSD-3-Clause
//
// Which backend performs an operation, and what happens if that backend does not support it.
#include <cohort/backend.h>
#include <cohort/hash_store.h>
#include <cohort/new_group.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "support/expect_error.h"
#include "support/ranks.h"

namespace cohort::test {
namespace {

using namespace std::chrono_literals;

/// Counts the operations that it is given, without contacting peers.
class Counter final : public Backend {
 public:
  explicit Counter(std::string name) : Backend(std::move(name), 0, 1) {}

  Capabilities capabilities() const override {
    return {.operations = Capabilities::bits({OpType::all_reduce, OpType::barrier, OpType::send}), .splitting = true};
  }
  void all_reduce(const Operation& /*op*/, Call& /*call*/) override { ++reductions; }
  void barrier(const Operation& /*op*/, Call& /*call*/) override { ++barriers; }
  BackendPtr split(const BackendSplit& /*split*/, Deadline /*deadline*/) override {
    ++splits;
    return std::make_shared<Counter>(name() + "'s child");
  }
  void abort(std::string_view /*reason*/) override { ++aborts; }
  bool drain(Deadline deadline) override { return is_idle || deadline.is_never(); }
  void shutdown(Deadline /*deadline*/) override { ++shutdowns; }

  int reductions = 0;
  int barriers = 0;
  int splits = 0;
  int aborts = 0;
  int shutdowns = 0;
  bool is_idle = true;
};

class Dispatch : public ::testing::Test {
 protected:
  std::shared_ptr<Counter> first = std::make_shared<Counter>("first");
  std::shared_ptr<Counter> second = std::make_shared<Counter>("second");
  ProcessGroupPtr group = std::make_shared<ProcessGroup>(std::make_shared<HashStore>(), 0, 1);
  std::vector<float> memory = std::vector<float>(4);

  Buffer on(const Device& device) { return {memory.data(), DType::f32, {4}, {}, device}; }
};

TEST_F(Dispatch, ByTheDeviceOfTheBuffer) {
  group->add_backend(DeviceType::cpu, first);
  group->add_backend(DeviceType::cuda, second);
  group->all_reduce(on("cpu"));
  group->all_reduce(on("cuda:0"));
  group->all_reduce(on("cuda:5"));
  group->all_reduce(on("cuda:5"), {.async_op = true}).wait();
  EXPECT_EQ(first->reductions, 1);
  EXPECT_EQ(second->reductions, 3) << "the index does not matter";
  EXPECT_EQ(group->backend("cpu"), first);
  EXPECT_EQ(group->backend("cuda:7"), second);
}

TEST_F(Dispatch, BarrierGoesToTheDefaultUnlessADeviceIsNamed) {
  group->add_backend(DeviceType::cpu, first);
  group->add_backend(DeviceType::cuda, second);
  EXPECT_EQ(group->name(), "first") << "the first one added";
  EXPECT_EQ(group->default_backend(), first);
  group->barrier();
  group->barrier({.device = Device("cuda:0")});
  EXPECT_EQ(first->barriers, 1);
  EXPECT_EQ(second->barriers, 1);
  group->set_default_backend(DeviceType::cuda);
  EXPECT_EQ(group->name(), "second");
  group->barrier();
  EXPECT_EQ(second->barriers, 2);
}

TEST_F(Dispatch, OneBackendMayServeSeveralDevices) {
  group->add_backend(DeviceType::cpu, first);
  group->add_backend(DeviceType::cuda, first);
  group->all_reduce(on("cpu"));
  group->all_reduce(on("cuda:0"));
  EXPECT_EQ(first->reductions, 2);
  EXPECT_THAT(group->device_types(), ::testing::ElementsAre(DeviceType::cpu, DeviceType::cuda));

  const auto child = group->split_group({0});
  EXPECT_EQ(first->splits, 1) << "once for each backend, not for each device";
  EXPECT_EQ(child->backend("cpu"), child->backend("cuda"));
  EXPECT_EQ(child->name(), "first's child");
  group->abort();
  EXPECT_EQ(first->aborts, 1);
}

TEST_F(Dispatch, SplitKeepsTheDefaultAndTheDevices) {
  group->add_backend(DeviceType::cpu, first);
  group->add_backend(DeviceType::cuda, second);
  group->set_default_backend(DeviceType::cuda);
  const auto child = group->split_group({0});
  EXPECT_EQ(child->name(), "second's child");
  EXPECT_EQ(child->backend("cpu")->name(), "first's child");
  EXPECT_EQ(first->splits, 1);
  EXPECT_EQ(second->splits, 1);
  first->is_idle = false;
  EXPECT_ERROR(OperationTimeoutError, group->shutdown(1ms), "shutdown gave up after 1 ms");
  EXPECT_EQ(second->shutdowns, 0);
  group->shutdown();
  group->shutdown();
  EXPECT_EQ(first->shutdowns, 1);
  EXPECT_EQ(second->shutdowns, 1);
}

TEST_F(Dispatch, MissingDeviceIsRefusedByName) {
  EXPECT_ERROR(Error, group->all_reduce(on("cpu")), "has none");
  EXPECT_ERROR(Error, group->barrier(), "none");
  group->add_backend(DeviceType::cpu, first);
  EXPECT_ERROR(Error, group->all_reduce(on("cuda:0")), "no backend for cuda; it has cpu");
  EXPECT_ERROR(Error, group->backend("cuda"), "no backend for cuda");
  EXPECT_ERROR(Error, group->barrier({.device = Device("cuda:0")}), "cuda");
  EXPECT_ERROR(Error, group->set_default_backend(DeviceType::cuda), "cuda");
  EXPECT_EQ(group->sequence_number(), 0U) << "a refused call takes no number";
  EXPECT_EQ(group->default_backend(), first);
}

TEST_F(Dispatch, AddingWhatDoesNotFitIsRefused) {
  group->add_backend(DeviceType::cpu, first);
  EXPECT_ERROR(Error, group->add_backend(DeviceType::cpu, second), "first");
  EXPECT_ERROR(Error, group->add_backend(DeviceType::cuda, nullptr), "null");
  EXPECT_ERROR(Error, group->add_backend(DeviceType::cuda, std::make_shared<Backend>("big", 1, 2)), "rank 1 of 2");
  EXPECT_THAT(group->device_types(), ::testing::ElementsAre(DeviceType::cpu));
}

TEST_F(Dispatch, CapabilitiesAreAsked) {
  group->add_backend(DeviceType::cpu, first);
  const auto can = group->capabilities();
  EXPECT_TRUE(can.supports(OpType::all_reduce));
  EXPECT_TRUE(can.supports(OpType::send));
  EXPECT_FALSE(can.supports(OpType::broadcast));
  EXPECT_FALSE(can.supports(OpType::recv));
  EXPECT_TRUE(can.splitting);
  EXPECT_FALSE(can.shrinking);
  EXPECT_FALSE(can.group_memory);
  EXPECT_FALSE(Capabilities{}.supports(OpType::broadcast)) << "operation 0 too";
  EXPECT_THROW(group->capabilities("cuda"), Error);
}

TEST(Capabilities, OfTheBackendsThatComeWithTheLibrary) {
  for (const std::string name : {"shm", "thread", "fake"}) {
    const auto group = new_group(name, 5s, "cpu", {}, {.store = std::make_shared<HashStore>(), .rank = 0, .size = 1});
    const auto can = group->capabilities("cpu");
    for (const auto op :
         {OpType::broadcast, OpType::all_reduce, OpType::all_reduce_coalesced, OpType::reduce, OpType::all_gather,
          OpType::all_gather_single, OpType::all_gather_coalesced, OpType::gather, OpType::scatter,
          OpType::reduce_scatter, OpType::all_to_all_single, OpType::all_to_all, OpType::send, OpType::recv,
          OpType::recv_any_source, OpType::barrier, OpType::reduce_scatter_single, OpType::coalesced}) {
      EXPECT_TRUE(can.supports(op)) << name << " " << to_string(op);
    }
    EXPECT_TRUE(can.splitting && can.shrinking && can.aborting && can.premul_sum && can.deterministic_order) << name;
    EXPECT_TRUE(can.group_memory) << name;
  }
}

/// A backend that supports nothing.
class Minimal : public ::testing::Test {
 protected:
  Minimal() { group->add_backend(DeviceType::cpu, std::make_shared<Backend>("minimal", 0, 2)); }

  ProcessGroupPtr group = std::make_shared<ProcessGroup>(std::make_shared<HashStore>(), 0, 2, 5s);
  std::vector<float> x = std::vector<float>(4);
  std::vector<float> y = std::vector<float>(8);
};

TEST_F(Minimal, EveryOperationSaysThatItIsNotSupported) {
  const std::vector<float> half(2);
  const auto refuses = [&](const std::string& what, const std::function<void()>& call) {
    const auto message = message_of<NotSupportedError>(call);
    EXPECT_THAT(message, ::testing::HasSubstr("minimal does not support " + what));
  };
  refuses("all_reduce", [&] { group->all_reduce(x); });
  refuses("all_reduce", [&] { group->all_reduce(BufferList{x, x}); });
  refuses("all_reduce", [&] { group->all_reduce_coalesced({x, y}); });
  refuses("reduce", [&] { group->reduce(x); });
  refuses("broadcast", [&] { group->broadcast(x); });
  refuses("all_gather", [&] { group->all_gather(y, x); });
  refuses("all_gather", [&] { group->all_gather({x, x}, x); });
  refuses("all_gather", [&] { group->all_gather_coalesced(BufferList{y}, {x}); });
  refuses("gather", [&] { group->gather({x, x}, x); });
  refuses("scatter", [&] { group->scatter(x, {x, x}); });
  refuses("reduce_scatter", [&] { group->reduce_scatter(x, y); });
  refuses("reduce_scatter", [&] { group->reduce_scatter(x, {x, x}); });
  refuses("reduce_scatter", [&] { group->reduce_scatter_coalesced({x}, {y}); });
  refuses("all_to_all", [&] { group->all_to_all(y, y); });
  refuses("all_to_all", [&] { group->all_to_all({x, x}, {x, x}); });
  refuses("barrier", [&] { group->barrier(); });
  refuses("send", [&] { group->send(x, 1); });
  refuses("recv", [&] { group->recv(x, 1); });
  refuses("recv", [&] { group->recv_any_source(x); });
  refuses("send", [&] { group->send(x, 1, {.async_op = true}).wait(); });
  refuses("recv", [&] { group->recv(x, 1, {.async_op = true}).wait(); });
  refuses("broadcast", [&] { group->broadcast(x, {.async_op = true}).wait(); });
  refuses("all_gather", [&] { group->all_gather_bytes("x"); });
  refuses("broadcast", [&] { group->broadcast_bytes("x"); });
  refuses("all_gather", [&] { group->all_ok([] {}); });
  refuses("memory of the group", [&] { group->allocate(8); });
  refuses("split_group", [&] { group->split_group({0, 1}); });
  refuses("shrink", [&] { group->shrink(); });
}

TEST_F(Minimal, MonitoredBarrierNeedsSendAndRecv) {
  EXPECT_THROW(group->monitored_barrier(), NotSupportedError);
}

TEST_F(Minimal, BatchSaysItToo) {
  auto batch = group->batch();
  batch.all_reduce(x);
  EXPECT_THROW(batch.run(), NotSupportedError);
  batch.send(x, 1);
  batch.recv(y, 1);
  EXPECT_THROW(batch.run().wait(), NotSupportedError);
}

TEST_F(Minimal, EndsInOrder) {
  EXPECT_NO_THROW(group->wait_for_pending());
  EXPECT_NO_THROW(group->abort("nothing to abort"));
  EXPECT_NO_THROW(group->shutdown());
  EXPECT_THROW(group->barrier(), Error);
}

}  // namespace
}  // namespace cohort::test

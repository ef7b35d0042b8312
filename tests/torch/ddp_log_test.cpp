// SPDX-License-Identifier: BSD-3-Clause
//
// Where buckets lie, and what is logged of them.
#include <cohort/backend.h>
#include <cohort/torch/hooks.h>
#include <cohort/torch/sync_batch_norm.h>

#include <algorithm>
#include <map>

#include "torch/ddp_test.h"

namespace cohort::test {
namespace {

using ::testing::HasSubstr;

// --- where buckets lie

/// One rank that counts what is allocated from it.
class Allocates final : public Backend {
 public:
  Allocates() : Backend("allocates", 0, 1) {}
  Capabilities capabilities() const override { return {.group_memory = true, .premul_sum = true}; }
  void all_reduce(const Operation& /*op*/, Call& /*call*/) override {}
  void broadcast(const Operation& /*op*/, Call& /*call*/) override {}
  void all_gather(const Operation& op, Call& /*call*/) override { std::ranges::copy(op.in(), op.out().begin()); }
  GroupMemory allocate(std::size_t bytes) override {
    ++allocations;
    auto memory = std::make_shared<std::vector<std::byte>>(bytes);
    return {memory, memory->data(), bytes};
  }
  int allocations = 0;
};

TEST(DdpMemory, BucketsAreInWhatTheBackendAllocates) {
  const auto backend = std::make_shared<Allocates>();
  const auto group = std::make_shared<ProcessGroup>(std::make_shared<HashStore>(), 0, 1);
  group->add_backend(DeviceType::cpu, backend);
  DistributedDataParallel ddp(Mlp(), {.process_group = group});
  EXPECT_EQ(backend->allocations, 1);
  ::setenv("DDP_DISABLE_COMM_MEM", "1", 1);
  const DistributedDataParallel without(Mlp(), {.process_group = group});
  EXPECT_EQ(backend->allocations, 1);
  ::unsetenv("DDP_DISABLE_COMM_MEM");
}

/// One of two ranks, whose sums are its own values: what was divided before the sum can be seen.
class CannotScale final : public Backend {
 public:
  CannotScale() : Backend("cannot_scale", 0, 2) {}
  Capabilities capabilities() const override { return {}; }
  void all_reduce(const Operation& /*op*/, Call& /*call*/) override {}
};

TEST(Ddp, GradientsAreDividedBeforeTheSumWhereTheBackendCannot) {
  for (const bool is_batched : {false, true}) {
    for (const bool is_view : {false, true}) {
      const auto group = std::make_shared<ProcessGroup>(std::make_shared<HashStore>(), 0, 2);
      group->add_backend(DeviceType::cpu, std::make_shared<CannotScale>());
      Mlp net;
      fill(*net, 1);
      Mlp alone;
      fill(*alone, 1);
      DistributedDataParallel ddp(net, {.process_group = group,
                                        .gradient_as_bucket_view = is_view,
                                        .batched_grad_copy = is_batched,
                                        .init_sync = false});
      ddp.forward(random_batch(1, {3, 4})).sum().backward();
      alone->forward(random_batch(1, {3, 4})).sum().backward();
      for (std::size_t i = 0; i < net->parameters().size(); ++i) {
        EXPECT_LT(distance(net->parameters()[i].grad() * 2, alone->parameters()[i].grad()), 1e-12);
      }
    }
  }
}

// --- logging

TEST(DdpLog, ShowsWhenEachBucketWasReduced) {
  with_torch_threads(2, [](const ProcessGroupPtr& group) {
    DistributedDataParallel ddp(Mlp(), {.process_group = group, .bucket_cap_mb = 0.0001});
    ddp.record_timeline();
    for (int i = 0; i < 3; ++i) {
      ddp.zero_grad();
      ddp.forward(random_batch(i, {3, 4})).sum().backward();
    }
    const auto json = ddp.timeline_json();
    for (const auto* const each :
         {"forward", "backward", "bucket 0", "bucket 1", "bucket 2", "communication", "layer0.weight"}) {
      EXPECT_THAT(json, HasSubstr(each));
    }
  });
}

/// The integers that say how a wrapper was made.
std::map<std::string, std::int64_t> settings_in(const DdpLoggingData& log) {
  std::map<std::string, std::int64_t> found;
  for (const auto* const each :
       {"broadcast_buffers", "find_unused_parameters", "static_graph", "has_sync_bn", "is_multi_device_module",
        "join_uneven_inputs", "has_error", "can_set_static_graph", "has_rebuilt_buckets", "iteration"}) {
    found[each] = log.integers.at(each);
  }
  return found;
}

TEST(DdpLog, TellsHowItWasMadeAndHowItGoes) {
  ::setenv("MASTER_PORT", "4711", 1);
  ::setenv("TORCH_DISTRIBUTED_DEBUG", "INFO", 1);
  ::setenv("CUDA_VISIBLE_DEVICES", "3", 1);
  with_torch_threads(2, [](const ProcessGroupPtr& group) {
    DistributedDataParallel ddp(Mlp(), {.process_group = group, .bucket_cap_mb = 2});
    const auto made = ddp.logging_data();
    EXPECT_EQ(made.integer("world_size"), 2);
    EXPECT_EQ(made.integer("rank"), group->rank());
    EXPECT_EQ(made.integer("bucket_cap_bytes"), 2 << 20);
    EXPECT_EQ(made.integer("num_parameter_tensors"), 6);
    EXPECT_EQ(made.integer("total_parameter_size_bytes"), 1040);
    EXPECT_EQ(made.integer("output_device"), -1);
    EXPECT_EQ(made.integer("gradient_as_bucket_view"), 1);
    EXPECT_EQ(made.text("backend_name"), "thread");
    EXPECT_EQ(made.text("master_addr"), "N/A");
    EXPECT_THAT(made.text("module_name"), HasSubstr("Mlp"));
    EXPECT_THAT(to_json(made), HasSubstr("\"world_size\": 2"));
    std::map<std::string, std::int64_t> expected{
        {"broadcast_buffers", 1}, {"find_unused_parameters", 0}, {"static_graph", 0},
        {"has_sync_bn", 0},       {"is_multi_device_module", 0}, {"join_uneven_inputs", 0},
        {"has_error", 0},         {"can_set_static_graph", 1},   {"has_rebuilt_buckets", 0},
        {"iteration", 0}};
    EXPECT_EQ(settings_in(made), expected);
    const std::map<std::string, std::string> texts{{"device_ids", ""},       {"dtypes", "Double"},
                                                   {"comm_hook", ""},        {"error", ""},
                                                   {"master_port", "4711"},  {"torch_distributed_debug", "INFO"},
                                                   {"bucket_sizes", "1040"}, {"cuda_visible_devices", "3"}};
    for (const auto& [name, text] : texts) EXPECT_EQ(made.strings.at(name), text) << name;

    torch::nn::Sequential mixed(torch::nn::BatchNorm1d(2), torch::nn::Linear(2, 1));
    convert_sync_batch_norm(*mixed, group);
    mixed[1]->to(torch::kDouble);
    const DistributedDataParallel searches(
        mixed, {.process_group = group, .find_unused_parameters = true, .broadcast_buffers = false});
    expected["broadcast_buffers"] = 0;
    expected["find_unused_parameters"] = 1;
    expected["has_sync_bn"] = 1;
    EXPECT_EQ(settings_in(searches.logging_data()), expected);
    EXPECT_EQ(searches.logging_data().text("dtypes"), "Float, Double");
    EXPECT_EQ(searches.logging_data().text("bucket_sizes"), "24, 16");
    const DistributedDataParallel learns(Mlp(), {.process_group = group, .static_graph = true});
    EXPECT_EQ(learns.logging_data().integer("static_graph"), 1);

    EXPECT_ERROR(ValueError, ddp.set_logging_sample_rate(0), "sample rate");
    ddp.set_logging_sample_rate(4);
    std::vector<std::int64_t> sampled;
    for (int i = 1; i <= 20; ++i) {
      ddp.zero_grad();
      ddp.forward(random_batch(i, {3, 4})).sum().backward();
      sampled.push_back(ddp.logging_data().integer("iteration"));
    }
    EXPECT_EQ(sampled[4], 4);
    EXPECT_EQ(sampled[19], 16);
    const auto log = ddp.logging_data();
    EXPECT_EQ(log.integer("has_rebuilt_buckets"), 1);
    EXPECT_EQ(log.text("rebuilt_bucket_sizes"), "1040");
    EXPECT_EQ(log.integer("num_buckets_reduced"), 16) << "when iteration 16 was logged";
    const auto between = [&](const std::string& begin, const std::string& end) {
      return log.integer(end) - log.integer(begin);
    };
    EXPECT_EQ(log.integer("forward_compute_time"),
              between("forward_compute_time_start", "backward_compute_time_start"));
    EXPECT_EQ(log.integer("backward_compute_time"),
              between("backward_compute_time_start", "backward_compute_time_end"));
    EXPECT_EQ(log.integer("backward_comm_time"), between("backward_comm_time_start", "backward_comm_time_end"));
    for (const auto* const name : {"forward_compute_time", "backward_compute_time", "backward_comm_time"}) {
      EXPECT_GT(log.integer(name), 0) << name;
      EXPECT_GT(log.integer(std::string("avg_") + name), 0) << name;
    }
  });
  for (const auto* const each : {"MASTER_PORT", "TORCH_DISTRIBUTED_DEBUG", "CUDA_VISIBLE_DEVICES"}) ::unsetenv(each);
}

TEST(DdpLog, CountsUnusedParametersAndOverlap) {
  with_torch_threads(2, [](const ProcessGroupPtr& group) {
    DistributedDataParallel unused(Branches(), {.process_group = group, .find_unused_parameters = true});
    for (int i = 0; i < 2; ++i) unused.forward(torch::ones({1}, torch::kDouble), false).sum().backward();
    EXPECT_EQ(unused.logging_data().integer("unused_parameter_size"), 8);
    DistributedDataParallel buckets(Mlp(), {.process_group = group, .bucket_cap_mb = 0.0001});
    for (int i = 0; i < 4; ++i) {
      buckets.zero_grad();
      buckets.forward(random_batch(i, {3, 4})).sum().backward();
    }
    const auto log = buckets.logging_data();
    EXPECT_GT(log.integer("backward_compute_comm_overlap_time"), 0);
    EXPECT_EQ(log.integer("backward_compute_comm_overlap_time"),
              log.integer("backward_compute_time_end") - log.integer("backward_comm_time_start"))
        << "from the first bucket's launch to the last gradient";
    EXPECT_LE(log.integer("backward_compute_comm_overlap_time"), log.integer("backward_comm_time"));
  });
}

TEST(DdpLog, ShowsBucketsThatAHookReduces) {
  with_torch_threads(2, [](const ProcessGroupPtr& group) {
    DistributedDataParallel ddp(Mlp(), {.process_group = group, .bucket_cap_mb = 0.0001});
    ddp.register_comm_hook(hooks::all_reduce(group));
    ddp.record_timeline();
    for (int i = 0; i < 3; ++i) {
      ddp.zero_grad();
      ddp.forward(random_batch(i, {3, 4})).sum().backward();
    }
    EXPECT_THAT(ddp.timeline_json(), HasSubstr("bucket 2"));
  });
}

TEST(DdpLog, DumpsTheEnvironment) {
  ::setenv("NCCL_DEBUG", "WARN", 1);
  EXPECT_THAT(ddp_environment(), HasSubstr("env:NCCL_DEBUG=WARN\n"));
  ::unsetenv("NCCL_DEBUG");
  EXPECT_THAT(ddp_environment(), HasSubstr("env:NCCL_DEBUG=N/A\n"));
}

TEST(DdpLog, SaysWhetherTheGraphLooksStatic) {
  with_torch_threads(1, [](const ProcessGroupPtr& group) {
    DistributedDataParallel ddp(Branches(), {.process_group = group, .find_unused_parameters = true});
    const auto x = torch::ones({1}, torch::kDouble);
    ddp.forward(x, true).sum().backward();
    EXPECT_EQ(ddp.logging_data().integer("can_set_static_graph"), 1);
    ddp.forward(x, false).sum().backward();
    EXPECT_EQ(ddp.logging_data().integer("can_set_static_graph"), 0);
  });
}

}  // namespace
}  // namespace cohort::test

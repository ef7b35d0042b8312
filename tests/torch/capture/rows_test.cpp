// SPDX-License-Identifier: BSD-3-Clause
//
// Rows GC-01 to GC-05, GC-16, GC-17, GC-38 and GC-42 of the specification, one test or more for each. There is no
// tracer of host code here, so a query of a group, a mesh or a placement is an ordinary constant of the recording: what
// the specification calls folded shows as a number in the graph, and what was asked is guarded where it came from.
#include <ATen/ATen.h>
#include <cohort/backend.h>
#include <cohort/current_group.h>
#include <cohort/group_registry.h>
#include <cohort/hash_store.h>
#include <cohort/torch/capture.h>
#include <cohort/torch/ddp.h>
#include <cohort/torch/functional.h>
#include <cohort/torch/mesh.h>
#include <cohort/torch/placement.h>
#include <cohort/torch/tensor.h>
#include <torch/nn/modules/linear.h>

#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "torch/capture/guards_support.h"
#include "torch/capture/oracle.h"
#include "torch/torch_ranks.h"

namespace cohort::test {
namespace {

using testing::HasSubstr;
using testing::Not;

TEST(CaptureRows, Gc01RecordsAndReplaysWithGuards) {
  int runs = 0;
  auto step = capture([&](const at::Tensor& x, double factor) {
    ++runs;
    return (x * factor).sin().sum();
  });
  Numbers numbers(1);
  const auto expect_parity = [&](at::IntArrayRef sizes, double factor) {
    for (int i = 0; i < 4; ++i) {
      const auto x = numbers(sizes);
      expect_same_bits(step(x, factor), (x * factor).sin().sum(), step.explain());
    }
  };
  expect_parity({2, 3}, 2);
  EXPECT_EQ(runs, 2);
  expect_parity({3, 3}, 2);
  EXPECT_EQ(runs, 4) << "another size";
  EXPECT_THAT(step.explain(), HasSubstr("argument 1"));
  expect_parity({3, 3}, 0.5);
  EXPECT_EQ(runs, 6) << "another number";
  EXPECT_THAT(step.explain(), HasSubstr("argument 2 was 2 and is 0.5"));
  expect_parity({2, 3}, 2);
  EXPECT_EQ(runs, 6) << "the first recording is still there";
  EXPECT_EQ(step.recordings(), 3U);
}

TEST(CaptureRows, Gc01GuardsEveryPartOfAnArgument) {
  using Settings = std::tuple<std::vector<std::int64_t>, std::optional<double>, std::map<std::string, at::Tensor>>;
  int runs = 0;
  auto step = capture([&](const Settings& settings, const std::vector<std::string>& names) {
    ++runs;
    const auto& [numbers, factor, tensors] = settings;
    at::Tensor sum = at::zeros({2});
    for (const auto each : numbers) sum = sum + static_cast<double>(each);
    for (const auto& [name, tensor] : tensors) {
      if (name != names.front()) sum = sum + tensor;
    }
    return factor ? sum * *factor : sum;
  });
  const auto call = [&](std::vector<std::int64_t> numbers, std::optional<double> factor, const std::string& key,
                        const std::string& name) {
    const auto before = runs;
    const Settings settings{std::move(numbers), factor, {{key, at::ones({2})}, {"z", at::ones({2})}}};
    const std::vector<std::string> names{name};
    const auto result = step(settings, names);
    step(settings, names);
    EXPECT_TRUE(at::equal(step(settings, names), result));
    return std::pair(result[0].item<double>(), runs - before);
  };
  EXPECT_EQ(call({1, 2}, std::nullopt, "a", "z"), std::pair(4.0, 2));
  EXPECT_EQ(call({1, 3}, std::nullopt, "a", "z"), std::pair(5.0, 2)) << "a number in a list";
  EXPECT_EQ(call({1, 3, 1}, std::nullopt, "a", "z"), std::pair(6.0, 2)) << "more numbers";
  EXPECT_EQ(call({1, 2}, 2.0, "a", "z"), std::pair(8.0, 2)) << "an optional";
  EXPECT_EQ(call({1, 2}, std::nullopt, "a", "q"), std::pair(5.0, 2)) << "a string in a list";
  EXPECT_EQ(call({1, 2}, std::nullopt, "q", "q"), std::pair(4.0, 2)) << "a key";
  EXPECT_EQ(call({1, 2}, std::nullopt, "a", "z"), std::pair(4.0, 0)) << "as the first time";
}

TEST(CaptureRows, Gc02GroupsAreGuardedByIdentity) {
  const auto group = fake_group(1, 4);
  const auto same_size = fake_group(1, 4);
  int runs = 0;
  auto step = capture([&](const at::Tensor& x, const ProcessGroupPtr& on) {
    ++runs;
    return x * on->size() + on->rank() + static_cast<double>(on->name().size());
  });
  const auto x = at::ones({2});
  expect_result(step, at::full({2}, 9.0), x, group);
  EXPECT_EQ(runs, 2);
  EXPECT_TRUE(step.graph().nodes.front().name.starts_with("aten::mul")) << step.graph();
  EXPECT_EQ(step.graph().nodes.size(), 3U) << "queries are no nodes:\n" << step.graph();
  EXPECT_THAT(to_string(step.graph()), Not(HasSubstr(group->id()))) << "and the group is no value";
  expect_result(step, at::full({2}, 9.0), x, same_size);
  EXPECT_EQ(runs, 4) << "another group object is another recording, whatever it says of itself";
  EXPECT_THAT(step.explain(), HasSubstr("argument 2 was the group " + group->id()));
  expect_result(step, at::full({2}, 9.0), x, group);
  EXPECT_EQ(runs, 4);
}

TEST(CaptureRows, Gc02WhatTheUserOfAGroupMaySetIsGuarded) {
  int runs = 0;
  const auto body = [&](const at::Tensor& x, const ProcessGroupPtr& on) {
    ++runs;
    const auto device = on->bound_device();
    return x + static_cast<double>(on->timeout().count()) + static_cast<double>(on->group_desc().size()) +
           static_cast<double>(on->group_name().size()) + (device ? 0.5 : 0.0);
  };
  const std::vector<std::pair<std::string, std::function<void(ProcessGroup&)>>> changes{
      {"its timeout was 5000 ms and is 7000 ms",
       [](ProcessGroup& group) { group.set_timeout(std::chrono::seconds(7)); }},
      {"its description was \"\" and is \"pairs\"", [](ProcessGroup& group) { group.set_group_desc("pairs"); }},
      {"its name was \"\" and is \"dp\"", [](ProcessGroup& group) { group.set_group_name("dp"); }},
      {"its bound device was \"none\" and is \"cuda:0\"",
       [](ProcessGroup& group) { group.set_bound_device(Device(DeviceType::cuda, 0)); }},
  };
  const auto x = at::ones({2});
  for (const auto& [text, change] : changes) {
    for (const bool is_argument : {true, false}) {
      const auto group = fake_group(1, 4);
      const ProcessGroupGuard scope(is_argument ? nullptr : group);
      auto of_argument = capture(body);
      auto of_current = capture([&](const at::Tensor& y) { return body(y, current_process_group()); });
      const auto expect_parity = [&] {
        runs = 0;
        const auto expected = body(x, group);
        for (int i = 0; i < 3; ++i) {
          EXPECT_TRUE(at::equal(is_argument ? of_argument(x, group) : of_current(x), expected)) << text;
        }
        EXPECT_EQ(runs, 3) << text;
      };
      expect_parity();
      change(*group);
      expect_parity();
      const auto explained = is_argument ? of_argument.explain() : of_current.explain();
      EXPECT_THAT(explained, HasSubstr("group " + group->id() + ": " + text));
    }
  }
}

TEST(CaptureRows, Gc02TheDefaultBackendIsGuarded) {
  const auto group = new_group("cpu:thread,cuda:fake", std::chrono::seconds(5), "cpu", {},
                               {.store = std::make_shared<HashStore>(), .rank = 0, .size = 1});
  int runs = 0;
  auto step = capture([&](const at::Tensor& x, const ProcessGroupPtr& on) {
    ++runs;
    return x + (on->default_backend()->name() == "fake" ? 1 : 2);
  });
  const auto x = at::zeros({2});
  expect_result(step, at::full({2}, 2.0), x, group);
  EXPECT_EQ(runs, 2);
  group->set_default_backend(DeviceType::cuda);
  expect_result(step, at::full({2}, 1.0), x, group);
  EXPECT_EQ(runs, 4);
  EXPECT_THAT(step.explain(), HasSubstr("its default backend was"));
}

/// A replayed collective would have the timeout that the group had once.
TEST(CaptureRows, Gc02TheTimeoutOfReplayedCollectivesIsThatOfTheGroup) {
  with_torch_threads(2, [](const ProcessGroupPtr& group) {
    int runs = 0;
    auto step = capture([&](const at::Tensor& x) {
      ++runs;
      const auto y = x * 1;
      group->all_reduce(y);
      return y;
    });
    const auto x = at::ones({2});
    for (int i = 0; i < 3; ++i) step(x);
    EXPECT_EQ(runs, 2);
    group->barrier();
    group->set_timeout(std::chrono::milliseconds(1000));
    for (int i = 0; i < 3; ++i) step(x);
    EXPECT_EQ(runs, 4);
    if (group->rank() == 0) {
      EXPECT_ERROR(OperationTimeoutError, step(x), "1000 ms");
      group->store()->set("has timed out", "");
    }
    group->store()->wait({"has timed out"});
  });
}

TEST(CaptureRows, Gc02WhatAGroupGivesToTheHostIsRefused) {
  with_torch_threads(2, [](const ProcessGroupPtr& group) {
    const std::vector<std::pair<std::string, std::function<void()>>> calls{
        {"all_gather_bytes", [&] { group->all_gather_bytes("mine"); }},
        {"gather_bytes", [&] { group->gather_bytes("mine"); }},
        {"broadcast_bytes", [&] { group->broadcast_bytes("mine"); }},
        {"all_ok", [&] { group->all_ok([] {}); }},
        {"monitored_barrier", [&] { group->monitored_barrier(); }},
        {"split_group",
         [&] {
           group->split_group({0, 1});
         }},
        {"partition",
         [&] {
           group->partition({{0, 1}});
         }},
        {"shrink", [&] { group->shrink(); }},
        {"grow", [&] { group->grow(); }},
        {"merge_remote_group", [&] { group->merge_remote_group(std::make_shared<HashStore>(), 2); }},
    };
    for (const auto& [name, call] : calls) {
      auto step = capture([&, &body = call](const at::Tensor& x) {
        body();
        return x + 1;
      });
      try {
        step(at::ones({2}));
        ADD_FAILURE() << name << " was captured";
      } catch (const CaptureError& error) {
        EXPECT_EQ(error.reason(), CaptureRefusal::unsupported_call) << name;
        EXPECT_THAT(error.refused(), HasSubstr(group->id())) << name;
        EXPECT_THAT(error.explanation(), HasSubstr("host")) << name;
        EXPECT_FALSE(error.hints().empty()) << name;
      }
    }
    // Nobody is out of step.
    const auto x = at::ones({1});
    group->all_reduce(x);
    EXPECT_EQ(x.item<float>(), 2);
    double counted = 0;
    auto step = capture([&](const at::Tensor& y) {
      const auto z = y * static_cast<double>(group->sequence_number());
      group->all_reduce(z);
      ++counted;
      return z;
    });
    EXPECT_ERROR(CaptureError, for (int i = 0; i < 6; ++i) step(x), "changing_number");
    EXPECT_EQ(counted, 5);
  });
}

template <class T>
constexpr bool may_be_returned = detail::is_made_of_tensors<T>();

/// Nothing but tensors can be returned: the rest would be what it was in the recording.
TEST(CaptureRows, Gc03GroupsCannotBeReturned) {
  static_assert(may_be_returned<at::Tensor> && may_be_returned<std::vector<std::optional<at::Tensor>>>);
  static_assert(may_be_returned<std::map<std::string, std::pair<at::Tensor, at::Tensor>>>);
  static_assert(!may_be_returned<ProcessGroupPtr> && !may_be_returned<std::pair<at::Tensor, ProcessGroupPtr>>);
  static_assert(!may_be_returned<DeviceMesh> && !may_be_returned<Placement>);
  static_assert(!may_be_returned<std::pair<at::Tensor, double>> && !may_be_returned<std::vector<int>>);
}

TEST(CaptureRows, Gc04TheCurrentGroupAndNoGroupAreGuarded) {
  const auto group = fake_group(0, 2);
  const auto other = fake_group(0, 3);
  int runs = 0;
  auto step = capture([&](const at::Tensor& x) {
    ++runs;
    const auto current = current_process_group();
    return current == nullptr ? x - 1 : x * current->size();
  });
  const auto x = at::ones({2});
  expect_result(step, at::zeros({2}), x);
  {
    const ProcessGroupGuard scope(group);
    expect_result(step, at::full({2}, 2.0), x);
    EXPECT_THAT(step.explain(), HasSubstr("current group"));
    const ProcessGroupGuard inner(other);
    expect_result(step, at::full({2}, 3.0), x);
  }
  expect_result(step, at::zeros({2}), x);
  EXPECT_EQ(runs, 6);
  // A rank that split_group() leaves out has no group.
  auto with_group =
      capture([&](const at::Tensor& y, const ProcessGroupPtr& on) { return on == nullptr ? y - 1 : y + 1; });
  const ProcessGroupPtr none;
  expect_result(with_group, at::zeros({2}), x, none);
  expect_result(with_group, at::full({2}, 2.0), x, group);
  EXPECT_THAT(with_group.explain(), HasSubstr("no group"));
}

TEST(CaptureRows, Gc05HelperQueriesAreConstantsOfTheRecording) {
  const GroupRegistryScope registry;
  const auto group = fake_group(1, 4);
  register_group("dp", group);
  int runs = 0;
  auto step = capture([&](const at::Tensor& x) {
    ++runs;
    const auto named = resolve_group("dp");
    const auto of_ranks = find_group_of_ranks(named->global_ranks());
    const auto is_in = static_cast<double>(std::count(named->global_ranks().begin(), named->global_ranks().end(), 1));
    auto y = x * named->size();
    y = y + static_cast<double>(of_ranks->id() == named->id());
    y = y * is_in;
    return y + static_cast<double>(named->group_desc().size());
  });
  const auto x = at::ones({2});
  expect_result(step, at::full({2}, 5.0), x);
  EXPECT_EQ(runs, 2);
  EXPECT_EQ(step.graph().nodes.size(), 4U) << "the arithmetic, and nothing else\n" << step.graph();
  // What a name stands for is not guarded: the group may be an argument, which is.
  unregister_group("dp");
  const auto later = fake_group(1, 8);
  register_group("dp", later);
  expect_result(step, at::full({2}, 5.0), x);
  EXPECT_EQ(runs, 2);
}

TEST(CaptureRows, Gc16BackendsThatAreNotBuiltIn) {
  const auto names = backend_names();
  EXPECT_EQ(std::count(names.begin(), names.end(), "quantum"), 0);
  auto step = capture([&](const at::Tensor& x) {
    const auto group = new_group("quantum", std::chrono::seconds(1), "cpu", {},
                                 {.store = std::make_shared<HashStore>(), .rank = 0, .size = 1});
    return x * group->size();
  });
  EXPECT_ERROR(ValueError, step(at::ones({2})), "unknown backend \"quantum\"");
  // Capture itself needs no backend, no group and no mesh.
  auto plain = capture([](const at::Tensor& x) { return x * 2; });
  const auto x = at::ones({2});
  expect_result(plain, at::full({2}, 2.0), x);
  EXPECT_TRUE(summarize(plain.graph()).empty());
}

TEST(CaptureRows, Gc16BackendsThatThisMachineLacks) {
  const auto names = backend_names();
  std::vector<std::string> lacking;
  for (const auto* const known : {"gloo", "mpi", "nccl"}) {
    if (std::count(names.begin(), names.end(), known) == 0) lacking.emplace_back(known);
  }
  if (lacking.empty()) GTEST_SKIP() << "this machine has every backend";
  for (const auto& name : lacking) {
    const auto make = [&] {
      return new_group(name, std::chrono::seconds(1), "cpu", {},
                       {.store = std::make_shared<HashStore>(), .rank = 0, .size = 1});
    };
    const auto outside = message_of<ValueError>([&] { make(); });
    EXPECT_THAT(outside, HasSubstr("the backend " + name + " cannot be used here"));
    auto step = capture([&](const at::Tensor& x) { return x * make()->size(); });
    EXPECT_ERROR(ValueError, step(at::ones({2})), outside);
  }
}

TEST(CaptureRows, Gc17RefusalsCarryKindContextExplanationAndHints) {
  auto step = capture([](const at::Tensor& x) { return x.sum().item<float>() > 0 ? x + 1 : x; });
  try {
    step(at::ones({2}));
    FAIL() << "the step was captured";
  } catch (const CaptureError& error) {
    EXPECT_EQ(error.reason(), CaptureRefusal::host_read);
    EXPECT_THAT(error.refused(), HasSubstr("aten::_local_scalar_dense(f32[])"));
    EXPECT_THAT(error.explanation(), HasSubstr("the host gets elements"));
    EXPECT_THAT(error.hints(), testing::Contains(HasSubstr("torch::where()")));
    EXPECT_THAT(error.what(), HasSubstr("host_read"));
  }
  // With allow_eager the step goes on as it is and says why.
  auto eager =
      capture([](const at::Tensor& x) { return x.sum().item<float>() > 0 ? x + 1 : x; }, {.allow_eager = true});
  const auto ones = at::ones({2});
  const auto minus = -ones;
  expect_result(eager, at::full({2}, 2.0), ones);
  expect_result(eager, minus, minus);
  EXPECT_THAT(eager.explain(), HasSubstr("aten::_local_scalar_dense"));
}

using Ddp = DistributedDataParallel<torch::nn::LinearImpl>;

/// A step with DDP, a functional collective and a plain one; its graph, with the group's id replaced.
Graph graph_on(const ProcessGroupPtr& group) {
  torch::nn::Linear net(3, 4);
  Ddp ddp(net, {.process_group = group, .bucket_cap_mb = 1e-5});
  auto step = capture(
      [&](const at::Tensor& x) {
        ddp.zero_grad();
        const auto loss = ddp.forward(x).pow(2).sum();
        loss.backward();
        const auto mean = functional::all_reduce(loss.detach(), "avg", group);
        const auto most = loss.detach() * 1;
        group->all_reduce(most, {.op = ReduceOp::max(), .async_op = true}).wait();
        return mean + most;
      },
      {.watch = {ddp}});
  const auto x = at::ones({2, 3});
  for (int i = 0; i < 6; ++i) step(x);
  auto graph = step.graph();
  for (auto& node : graph.nodes) {
    if (!node.group.empty()) node.group = "group";
    for (auto& operand : node.operands) {
      if (operand.text.find(group->id()) != std::string::npos) operand.text = "group";
    }
  }
  return graph;
}

TEST(CaptureRows, Gc38ARecordingOnAFakeGroupEqualsThatOnARealOne) {
  for (const int size : {2, 3}) {
    with_torch_threads(size, [](const ProcessGroupPtr& group) {
      const auto real = graph_on(group);
      const auto fake = graph_on(fake_group(group->rank(), group->size()));
      EXPECT_GE(count_nodes(real, GraphNode::Kind::collective), 4U) << real;
      EXPECT_EQ(first_difference(real, fake), "") << real << fake;
    });
  }
  const auto four = graph_on(fake_group(0, 4));
  EXPECT_NE(first_difference(graph_on(fake_group(0, 3)), four), "") << "of other sizes they differ";
}

TEST(CaptureRows, Gc42TheReducersCollectivesAreNodes) {
  with_torch_threads(2, [](const ProcessGroupPtr& group) {
    torch::nn::Linear net(3, 4);
    Numbers(5).fill(net->parameters());
    Ddp ddp(net, {.process_group = group, .bucket_cap_mb = 1e-5});
    auto step = capture(
        [&](const at::Tensor& x) {
          ddp.zero_grad();
          ddp.forward(x).pow(2).sum().backward();
        },
        {.watch = {ddp}});
    torch::nn::Linear twin(3, 4);
    Numbers(5).fill(twin->parameters());
    Ddp eager(twin, {.process_group = group, .bucket_cap_mb = 1e-5});
    Numbers numbers(group->rank());
    for (int i = 0; i < 8; ++i) {
      const auto x = numbers({5, 3});
      step(x);
      eager.zero_grad();
      eager.forward(x).pow(2).sum().backward();
      expect_same_bits(net->weight.grad(), twin->weight.grad(), "weight " + std::to_string(i));
      expect_same_bits(net->bias.grad(), twin->bias.grad(), "bias " + std::to_string(i));
    }
    // One all_reduce for each of both buckets. The last one has nothing to overlap with, and the step waits in it.
    std::vector<bool> are_async;
    for (const auto& node : step.graph().nodes) {
      if (node.name != "all_reduce") continue;
      are_async.push_back(node.is_async);
      EXPECT_EQ(node.group, group->id());
    }
    EXPECT_THAT(are_async, testing::ElementsAre(true, false)) << step.graph();
    EXPECT_EQ(count_nodes(step.graph(), GraphNode::Kind::wait), 1U) << step.graph();
  });
}

}  // namespace
}  // namespace cohort::test

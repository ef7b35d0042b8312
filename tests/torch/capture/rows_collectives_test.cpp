// SPDX-License-Identifier: BSD-3-Clause
//
// Rows GC-13 to GC-15 of the specification: collectives of every kind in a captured step, with new inputs in each replay.
#include <ATen/ATen.h>
#include <cohort/torch/capture.h>
#include <cohort/torch/functional.h>
#include <cohort/torch/tensor.h>

#include <map>
#include <string>
#include <vector>

#include "torch/capture/oracle.h"
#include "torch/torch_ranks.h"

namespace cohort::test {
namespace {

using Tensors = std::vector<at::Tensor>;

/// A collective with what it needs around it: from this rank's x, of `size` rows for each rank, to a result.
struct Form {
  std::string name;
  std::function<at::Tensor(ProcessGroup&, const at::Tensor&)> run;
  std::string node;    ///< of the graph
  bool waits = false;  ///< asynchronous: the graph has a wait
  friend void PrintTo(const Form& it, std::ostream* out) { *out << it.name; }
};

std::int64_t ranks_of(const ProcessGroup& group) {
  return group.size();
}

Tensors empty_parts(const ProcessGroup& group, const at::Tensor& x) {
  Tensors parts;
  for (int i = 0; i < group.size(); ++i) parts.push_back(at::zeros_like(x));
  return parts;
}

at::Tensor with_list(const ProcessGroup& group, const at::Tensor& x, const std::function<void(const Tensors&)>& run) {
  const auto parts = empty_parts(group, x);
  run(parts);
  return at::stack(parts);
}

/// Forms of the specification's table (section 8), blocking and asynchronous.
std::vector<Form> rewritten_forms() {
  std::vector<Form> forms;
  for (const bool is_async : {false, true}) {
    const std::string prefix = is_async ? "Async" : "";
    forms.push_back({prefix + "AllReduce",
                     [=](ProcessGroup& group, const at::Tensor& x) {
                       const auto y = x * 2;
                       group.all_reduce(y, {.async_op = is_async}).wait();
                       return y + 1;
                     },
                     "all_reduce", is_async});
    forms.push_back({prefix + "AllReduceMax",
                     [=](ProcessGroup& group, const at::Tensor& x) {
                       const auto y = x * 2;
                       group.all_reduce(y, {.op = ReduceOp::max(), .async_op = is_async}).wait();
                       return y + 1;
                     },
                     "all_reduce", is_async});
    forms.push_back({prefix + "AllGatherIntoTensor",
                     [=](ProcessGroup& group, const at::Tensor& x) {
                       const auto y = at::zeros({x.size(0) * ranks_of(group), x.size(1)});
                       group.all_gather(y, x, {.async_op = is_async}).wait();
                       return y * 3;
                     },
                     "all_gather_single", is_async});
    forms.push_back({prefix + "AllGather",
                     [=](ProcessGroup& group, const at::Tensor& x) {
                       return with_list(group, x, [&](const Tensors& parts) {
                         group.all_gather(parts, x, {.async_op = is_async}).wait();
                       });
                     },
                     "all_gather", is_async});
    forms.push_back({prefix + "ReduceScatterTensor",
                     [=](ProcessGroup& group, const at::Tensor& x) {
                       const auto y = at::zeros({x.size(0) / ranks_of(group), x.size(1)});
                       group.reduce_scatter(y, x, {.async_op = is_async}).wait();
                       return y * 3;
                     },
                     "reduce_scatter_single", is_async});
    forms.push_back(
        {prefix + "ReduceScatter",
         [=](ProcessGroup& group, const at::Tensor& x) {
           const auto y = at::zeros({x.size(0) / ranks_of(group), x.size(1)});
           group.reduce_scatter(y, x.chunk(group.size()), {.op = ReduceOp::avg(), .async_op = is_async}).wait();
           return y * 3;
         },
         "reduce_scatter", is_async});
    forms.push_back({prefix + "AllToAllSingle",
                     [=](ProcessGroup& group, const at::Tensor& x) {
                       const auto y = at::zeros_like(x);
                       group.all_to_all(y, x, {.async_op = is_async}).wait();
                       return y * 3;
                     },
                     "all_to_all_single", is_async});
  }
  return forms;
}

/// All others, which capture of other libraries breaks at.
std::vector<Form> other_forms() {
  return {
      {"Broadcast",
       [](ProcessGroup& group, const at::Tensor& x) {
         const auto y = x * 2;
         group.broadcast(y, {.root = group.size() - 1});
         return y;
       },
       "broadcast"},
      {"AsyncBroadcastThatNobodyWaitsFor",
       [](ProcessGroup& group, const at::Tensor& x) {
         auto y = x * 2;
         group.broadcast(y, {.root = 1, .async_op = true});
         group.barrier();
         return y;
       },
       "broadcast", true},
      {"Reduce",
       [](ProcessGroup& group, const at::Tensor& x) {
         const auto y = x * 2;
         group.reduce(y, {.root = 1});
         return y;
       },
       "reduce"},
      {"Gather",
       [](ProcessGroup& group, const at::Tensor& x) {
         return with_list(group, x, [&](const Tensors& parts) {
           group.gather(group.rank() == 1 ? BufferList(parts) : BufferList(), x, {.root = 1});
         });
       },
       "gather"},
      {"Scatter",
       [](ProcessGroup& group, const at::Tensor& x) {
         const auto y = at::zeros_like(x.chunk(group.size())[0]);
         group.scatter(y, group.rank() == 1 ? ConstBufferList(x.chunk(group.size())) : ConstBufferList(), {.root = 1});
         return y;
       },
       "scatter"},
      {"AllToAll",
       [](ProcessGroup& group, const at::Tensor& x) {
         const auto parts = at::zeros_like(x).chunk(group.size());
         group.all_to_all(parts, x.chunk(group.size()));
         return at::cat(parts);
       },
       "all_to_all"},
      {"UnevenAllToAll",
       [](ProcessGroup& group, const at::Tensor& x) {
         // The first row to the next rank, all others to this one.
         std::vector<std::int64_t> sent(static_cast<std::size_t>(group.size()), 0);
         std::vector<std::int64_t> received = sent;
         const auto next = static_cast<std::size_t>((group.rank() + 1) % group.size());
         const auto before = static_cast<std::size_t>((group.rank() + group.size() - 1) % group.size());
         const auto self = static_cast<std::size_t>(group.rank());
         sent[next] += 1;
         sent[self] += x.size(0) - 1;
         received[before] += 1;
         received[self] += x.size(0) - 1;
         const auto y = at::zeros_like(x);
         group.all_to_all(y, x, {.output_splits = received, .input_splits = sent});
         return y;
       },
       "all_to_all_single"},
      {"AllReduceCoalesced",
       [](ProcessGroup& group, const at::Tensor& x) {
         const auto y = x * 2;
         const auto z = x.sum(0);
         group.all_reduce_coalesced({y, z});
         return y + z;
       },
       "all_reduce_coalesced"},
      {"AllGatherCoalesced",
       [](ProcessGroup& group, const at::Tensor& x) {
         const auto y = at::zeros({x.size(0) * ranks_of(group), x.size(1)});
         const auto z = at::zeros({ranks_of(group) * x.size(1)});
         group.all_gather_coalesced({y, z}, {x, x.sum(0)});
         return y.sum() + z;
       },
       "all_gather_coalesced"},
      {"ReduceScatterCoalesced",
       [](ProcessGroup& group, const at::Tensor& x) {
         const auto y = at::zeros({x.size(0) / ranks_of(group), x.size(1)});
         const auto z = at::zeros_like(y);
         group.reduce_scatter_coalesced({y, z}, {x, x * 2});
         return y + z;
       },
       "coalesced"},
      {"Barrier",
       [](ProcessGroup& group, const at::Tensor& x) {
         group.barrier();
         return x + 1;
       },
       "barrier"},
      {"SendAndRecv",
       [](ProcessGroup& group, const at::Tensor& x) {
         const auto y = at::zeros_like(x);
         const auto next = (group.rank() + 1) % group.size();
         const auto before = (group.rank() + group.size() - 1) % group.size();
         const auto sent = group.send(x * 2, next, {.tag = 3, .async_op = true});
         group.recv(y, before, {.tag = 3});
         sent.wait();
         return y;
       },
       "send", true},
      {"Batch",
       [](ProcessGroup& group, const at::Tensor& x) {
         const auto y = at::zeros_like(x);
         const auto z = x * 2;
         auto batch = group.batch();
         batch.send(x, (group.rank() + 1) % group.size());
         batch.recv(y, (group.rank() + group.size() - 1) % group.size());
         batch.run().wait();
         auto reductions = group.batch();
         reductions.all_reduce(z);
         reductions.broadcast(y, {.root = 0});
         reductions.run().wait();
         return y + z;
       },
       "coalesced", true},
  };
}

class CapturedCollective : public testing::TestWithParam<Form> {};

TEST_P(CapturedCollective, IsReplayedWithNewInputs) {
  for (const int size : {2, 3}) {
    with_torch_threads(size, [](const ProcessGroupPtr& group) {
      const auto& form = GetParam();
      int runs = 0;
      auto step = capture([&](const at::Tensor& x) {
        ++runs;
        return form.run(*group, x);
      });
      Numbers numbers(group->rank());
      for (int i = 0; i < 6; ++i) {
        const auto x = numbers({2 * ranks_of(*group), 3});
        const auto before = x.clone();
        expect_same_bits(step(x), form.run(*group, x), form.name + ", step " + std::to_string(i));
        EXPECT_TRUE(at::equal(x, before)) << "an input was written";
      }
      EXPECT_EQ(runs, 2) << step.explain();
      EXPECT_GE(count_nodes(step.graph(), form.node), 1U) << step.graph();
      EXPECT_EQ(count_nodes(step.graph(), GraphNode::Kind::wait) > 0, form.waits) << step.graph();
    });
  }
}

INSTANTIATE_TEST_SUITE_P(Gc14, CapturedCollective, testing::ValuesIn(rewritten_forms()),
                         [](const auto& it) { return it.param.name; });
INSTANTIATE_TEST_SUITE_P(Gc15, CapturedCollective, testing::ValuesIn(other_forms()),
                         [](const auto& it) { return it.param.name; });

TEST(CaptureRows, Gc13FunctionalCollectivesAreACollectiveAndAWait) {
  for (const int size : {2, 3}) {
    with_torch_threads(size, [](const ProcessGroupPtr& group) {
      const auto body = [&](const at::Tensor& x) {
        functional::all_reduce(x, "max", group);  // nobody uses it
        const auto sum = functional::all_reduce(x, "sum", group);
        const auto wide = functional::all_gather_tensor(sum * 2, 1, group);
        const auto mine = functional::reduce_scatter_tensor(wide, "avg", 0, group);
        return functional::broadcast(mine, 1, group) + mine;
      };
      auto step = capture(body);
      Numbers numbers(group->rank());
      for (int i = 0; i < 6; ++i) {
        const auto x = numbers({2 * ranks_of(*group), 3});
        expect_same_bits(step(x), body(x), "step " + std::to_string(i));
      }
      const auto& nodes = step.graph().nodes;
      EXPECT_EQ(count_nodes(step.graph(), "cohort::all_reduce"), 2U);
      EXPECT_EQ(count_nodes(step.graph(), GraphNode::Kind::collective), 5U) << step.graph();
      EXPECT_EQ(count_nodes(step.graph(), GraphNode::Kind::wait), 5U) << step.graph();
      for (std::size_t i = 0; i < nodes.size(); ++i) {
        if (nodes[i].kind != GraphNode::Kind::collective) continue;
        ASSERT_LT(i + 1, nodes.size());
        EXPECT_EQ(nodes[i + 1].kind, GraphNode::Kind::wait) << "behind node " << i;
        EXPECT_EQ(nodes[i].group, group->id());
      }
      EXPECT_EQ(functional::unwaited_collectives(), 0U);
    });
  }
}

/// The reductions of the specification in the functional and the plain form.
TEST(CaptureRows, Gc14ReductionsOfEveryName) {
  with_torch_threads(2, [](const ProcessGroupPtr& group) {
    for (const auto* const name : {"sum", "avg", "product", "min", "max", "band", "bor", "bxor"}) {
      const bool has_bits = std::string_view(name).starts_with("b");
      const auto body = [&](const at::Tensor& x) {
        const auto y = x * 1;
        group->all_reduce(y, {.op = parse_reduce_op(name)});
        return y + functional::all_reduce(x, name, group);
      };
      auto step = capture(body);
      Numbers numbers(group->rank());
      for (int i = 0; i < 4; ++i) {
        auto x = numbers({4, 3});
        if (has_bits) x = (x * 100).to(at::kLong);
        expect_same_bits(step(x), body(x), name);
      }
    }
  });
}

TEST(CaptureRows, Gc15UnknownReductionsAreErrorsAsInEagerMode) {
  with_torch_threads(2, [](const ProcessGroupPtr& group) {
    auto unknown = capture([&](const at::Tensor& x) { return functional::all_reduce(x, "median", group) + 1; });
    EXPECT_ERROR(ValueError, unknown(at::ones({2})), "median");
    EXPECT_EQ(unknown.recordings(), 1U);
    auto parsed = capture([&](const at::Tensor& x) { group->all_reduce(x, {.op = parse_reduce_op("median")}); });
    EXPECT_ERROR(ValueError, parsed(at::ones({2})), "median");
    // And one that the dtype does not have.
    auto bits = capture([&](const at::Tensor& x) { group->all_reduce(x, {.op = ReduceOp::bor()}); });
    EXPECT_ERROR(TypeError, bits(at::ones({2})), "bor");
    // The group is as usable as after an error in eager mode.
    auto good = capture([&](const at::Tensor& x) { return functional::all_reduce(x, "sum", group) + 1; });
    for (int i = 0; i < 4; ++i) EXPECT_TRUE(at::equal(good(at::ones({2})), at::full({2}, 3.0)));
  });
}

/// A factor that differs from step to step is no constant of the step.
TEST(CaptureRows, Gc15ChangingFactorsOfAReductionAreRefused) {
  with_torch_threads(2, [](const ProcessGroupPtr& group) {
    double factor = 1;
    auto step = capture([&](const at::Tensor& x) {
      const auto y = x * 1;
      group->all_reduce(y, {.op = ReduceOp::premul_sum(factor)});
      factor *= 0.5;
      return y;
    });
    EXPECT_ERROR(CaptureError, for (int i = 0; i < 8; ++i) step(at::ones({2})), "all_reduce");
  });
}

}  // namespace
}  // namespace cohort::test

// SPDX-License-Identifier: BSD-3-Clause
//
// Rows GC-13 to GC-15 of the specification: collectives of every kind in a captured step, with new inputs in each
// replay.
#include <ATen/ATen.h>
#include <cohort/reduction.h>
#include <cohort/torch/capture.h>
#include <cohort/torch/functional.h>
#include <cohort/torch/tensor.h>

#include <cmath>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>
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

/// The number of larger size, whatever its sign. A captured step refers to it, so it lives as long as the program.
const Reduction<float>& largest_by_size() {
  static const Reduction<float> reduction("largest by size", [](float& so_far, const float& next) {
    if (std::abs(next) > std::abs(so_far)) so_far = next;
  });
  return reduction;
}

/// Every rank sends to the next one and receives from the one before. Rank 0 alone sends first, so that blocking
/// messages do not wait for each other in a circle.
void pass_on(const ProcessGroup& group, const std::function<void(int)>& give, const std::function<void(int)>& take) {
  const auto next = (group.rank() + 1) % group.size();
  const auto before = (group.rank() + group.size() - 1) % group.size();
  if (group.rank() == 0) give(next);
  take(before);
  if (group.rank() != 0) give(next);
}

/// Rank r has r + 1 rows.
at::Tensor uneven_part(const ProcessGroup& group, const at::Tensor& x) {
  return x.narrow(0, 0, group.rank() + 1);
}
Tensors uneven_parts(const ProcessGroup& group, const at::Tensor& x) {
  Tensors parts;
  for (int i = 0; i < group.size(); ++i) parts.push_back(at::zeros({i + 1, x.size(1)}));
  return parts;
}

void add_rooted_forms(std::vector<Form>& forms, const std::string& prefix, bool is_async) {
  forms.push_back({prefix + "Broadcast",
                   [=](ProcessGroup& group, const at::Tensor& x) {
                     const auto y = x * 2;
                     group.broadcast(y, {.root = group.size() - 1, .async_op = is_async}).wait();
                     return y + 1;
                   },
                   "broadcast", is_async});
  forms.push_back({prefix + "Reduce",
                   [=](ProcessGroup& group, const at::Tensor& x) {
                     const auto y = x * 2;
                     group.reduce(y, {.root = 1, .async_op = is_async}).wait();
                     return y + 1;
                   },
                   "reduce", is_async});
  forms.push_back(
      {prefix + "Gather",
       [=](ProcessGroup& group, const at::Tensor& x) {
         return with_list(group, x, [&](const Tensors& parts) {
           group.gather(group.rank() == 1 ? BufferList(parts) : BufferList(), x, {.root = 1, .async_op = is_async})
               .wait();
         });
       },
       "gather", is_async});
  // As groups perform it (operations.h).
  forms.push_back({prefix + "UnevenGather",
                   [=](ProcessGroup& group, const at::Tensor& x) {
                     const auto parts = uneven_parts(group, x);
                     group
                         .gather(group.rank() == 1 ? BufferList(parts) : BufferList(), uneven_part(group, x),
                                 {.root = 1, .uneven = true, .async_op = is_async})
                         .wait();
                     return at::cat(parts);
                   },
                   "all_to_all", is_async});
  forms.push_back({prefix + "Scatter",
                   [=](ProcessGroup& group, const at::Tensor& x) {
                     const auto parts = x.chunk(group.size());
                     const auto y = at::zeros_like(parts[0]);
                     group
                         .scatter(y, group.rank() == 1 ? ConstBufferList(parts) : ConstBufferList(),
                                  {.root = 1, .async_op = is_async})
                         .wait();
                     return y + 1;
                   },
                   "scatter", is_async});
}

void add_list_forms(std::vector<Form>& forms, const std::string& prefix, bool is_async) {
  forms.push_back({prefix + "AllReduceOfAList",
                   [=](ProcessGroup& group, const at::Tensor& x) {
                     const Tensors list{x * 2, x + 1};
                     group.all_reduce(list, {.op = ReduceOp::max(), .async_op = is_async}).wait();
                     return at::stack(list);
                   },
                   "all_reduce", is_async});
  forms.push_back({prefix + "AllReduceOfNothing",
                   [=](ProcessGroup& group, const at::Tensor& x) {
                     const auto nothing_at_all = at::zeros({0, 3});
                     group.all_reduce(nothing_at_all, {.async_op = is_async}).wait();
                     return x + nothing_at_all.sum();
                   },
                   "all_reduce", is_async});
  forms.push_back({prefix + "UnevenAllGather",
                   [=](ProcessGroup& group, const at::Tensor& x) {
                     const auto parts = uneven_parts(group, x);
                     group.all_gather(parts, uneven_part(group, x), {.async_op = is_async}).wait();
                     return at::cat(parts);
                   },
                   "all_gather", is_async});
  forms.push_back({prefix + "UnevenReduceScatter",
                   [=](ProcessGroup& group, const at::Tensor& x) {
                     Tensors parts;
                     for (int i = 0; i < group.size(); ++i) parts.push_back(x.narrow(0, i, i + 1));
                     const auto y = at::zeros({group.rank() + 1, x.size(1)});
                     group.reduce_scatter(y, parts, {.async_op = is_async}).wait();
                     return y * 3;
                   },
                   "reduce_scatter", is_async});
  forms.push_back({prefix + "AllToAll",
                   [=](ProcessGroup& group, const at::Tensor& x) {
                     const auto parts = at::zeros_like(x).chunk(group.size());
                     group.all_to_all(parts, x.chunk(group.size()), {.async_op = is_async}).wait();
                     return at::cat(parts);
                   },
                   "all_to_all", is_async});
  forms.push_back(
      {prefix + "UnevenAllToAll",
       [=](ProcessGroup& group, const at::Tensor& x) {
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
         group.all_to_all(y, x, {.output_splits = received, .input_splits = sent, .async_op = is_async}).wait();
         return y * 3;
       },
       "all_to_all_single", is_async});
}

void add_coalesced_forms(std::vector<Form>& forms, const std::string& prefix, bool is_async) {
  forms.push_back({prefix + "AllReduceCoalesced",
                   [=](ProcessGroup& group, const at::Tensor& x) {
                     const auto y = x * 2;
                     const auto z = x.sum(0);
                     group.all_reduce_coalesced({y, z}, {.async_op = is_async}).wait();
                     return y + z;
                   },
                   "all_reduce_coalesced", is_async});
  forms.push_back({prefix + "AllGatherCoalesced",
                   [=](ProcessGroup& group, const at::Tensor& x) {
                     const auto y = at::zeros({x.size(0) * ranks_of(group), x.size(1)});
                     const auto z = at::zeros({ranks_of(group) * x.size(1)});
                     group.all_gather_coalesced({y, z}, {x, x.sum(0)}, {.async_op = is_async}).wait();
                     return y.sum() + z;
                   },
                   "all_gather_coalesced", is_async});
  forms.push_back({prefix + "AllGatherCoalescedIntoLists",
                   [=](ProcessGroup& group, const at::Tensor& x) {
                     const auto wide = empty_parts(group, x);
                     const auto short_ones = empty_parts(group, x[0]);
                     std::vector<BufferList> lists;
                     for (std::size_t i = 0; i < wide.size(); ++i) lists.push_back({wide[i], short_ones[i]});
                     group.all_gather_coalesced(lists, {x, x.sum(0)}, {.async_op = is_async}).wait();
                     return at::stack(wide).sum() + at::stack(short_ones);
                   },
                   "all_gather_coalesced", is_async});
  forms.push_back({prefix + "ReduceScatterCoalesced",
                   [=](ProcessGroup& group, const at::Tensor& x) {
                     const auto y = at::zeros({x.size(0) / ranks_of(group), x.size(1)});
                     const auto z = at::zeros_like(y);
                     group.reduce_scatter_coalesced({y, z}, {x, x * 2}, {.async_op = is_async}).wait();
                     return y + z;
                   },
                   "coalesced", is_async});
  forms.push_back({prefix + "BatchOfCollectives",
                   [=](ProcessGroup& group, const at::Tensor& x) {
                     const auto y = x * 2;
                     const auto z = x + 1;
                     auto batch = group.batch();
                     batch.all_reduce(y);
                     batch.broadcast(z, {.root = 0});
                     batch.run({.async_op = is_async}).wait();
                     return y + z;
                   },
                   "coalesced", is_async});
}

void add_messages(std::vector<Form>& forms, const std::string& prefix, bool is_async) {
  forms.push_back({prefix + "SendAndRecv",
                   [=](ProcessGroup& group, const at::Tensor& x) {
                     const auto y = at::zeros_like(x);
                     const auto z = x * 2;
                     std::vector<Work> works;
                     const SendOptions options{.tag = 3, .async_op = is_async};
                     pass_on(
                         group, [&](int peer) { works.push_back(group.send(z, peer, options)); },
                         [&](int peer) { works.push_back(group.recv(y, peer, options)); });
                     for (const auto& each : works) each.wait();
                     return y + 1;
                   },
                   "send", is_async});
  // One rank sends to each, so that it is always the same message that arrives.
  forms.push_back({prefix + "RecvAnySource",
                   [=](ProcessGroup& group, const at::Tensor& x) {
                     const auto y = at::zeros_like(x);
                     const auto z = x * 2;
                     std::vector<Work> works;
                     const SendOptions options{.tag = 4, .async_op = is_async};
                     pass_on(
                         group, [&](int peer) { works.push_back(group.send(z, peer, options)); },
                         [&](int /*peer*/) { works.push_back(group.recv_any_source(y, options)); });
                     for (const auto& each : works) each.wait();
                     return y + 1;
                   },
                   "recv_any_source", is_async});
  // The messages of a batch are under way together, also while a blocking run() waits for them.
  forms.push_back({prefix + "BatchOfMessages",
                   [=](ProcessGroup& group, const at::Tensor& x) {
                     const auto y = at::zeros_like(x);
                     auto batch = group.batch();
                     batch.send(x, (group.rank() + 1) % group.size());
                     batch.recv(y, (group.rank() + group.size() - 1) % group.size());
                     batch.run({.async_op = is_async}).wait();
                     return y + 1;
                   },
                   "send", true});
  forms.push_back({prefix + "Barrier",
                   [=](ProcessGroup& group, const at::Tensor& x) {
                     group.barrier({.async_op = is_async}).wait();
                     return x + 1;
                   },
                   "barrier", is_async});
}

void add_user_reductions(std::vector<Form>& forms, const std::string& prefix, bool is_async) {
  forms.push_back({prefix + "AllReduceOfOnesOwn",
                   [=](ProcessGroup& group, const at::Tensor& x) {
                     const auto y = x * 2;
                     group.all_reduce(y, {.op = largest_by_size(), .async_op = is_async}).wait();
                     return y + 1;
                   },
                   "all_reduce", is_async});
  forms.push_back({prefix + "ReduceOfOnesOwn",
                   [=](ProcessGroup& group, const at::Tensor& x) {
                     const auto y = x * 2;
                     group.reduce(y, {.root = 1, .op = largest_by_size(), .async_op = is_async}).wait();
                     return y + 1;
                   },
                   "reduce", is_async});
  forms.push_back({prefix + "ReduceScatterOfOnesOwn",
                   [=](ProcessGroup& group, const at::Tensor& x) {
                     const auto y = at::zeros({x.size(0) / ranks_of(group), x.size(1)});
                     group.reduce_scatter(y, x, {.op = largest_by_size(), .async_op = is_async}).wait();
                     return y * 3;
                   },
                   "reduce_scatter_single", is_async});
}

/// All others, which capture of other libraries breaks at.
std::vector<Form> other_forms() {
  std::vector<Form> forms;
  for (const bool is_async : {false, true}) {
    const std::string prefix = is_async ? "Async" : "";
    add_rooted_forms(forms, prefix, is_async);
    add_list_forms(forms, prefix, is_async);
    add_coalesced_forms(forms, prefix, is_async);
    add_messages(forms, prefix, is_async);
    add_user_reductions(forms, prefix, is_async);
  }
  forms.push_back({"AsyncBroadcastThatNobodyWaitsFor",
                   [](ProcessGroup& group, const at::Tensor& x) {
                     auto y = x * 2;
                     group.broadcast(y, {.root = 1, .async_op = true});
                     group.barrier();
                     return y;
                   },
                   "broadcast", true});
  return forms;
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
      CaptureOptions options;
      options.passes.overlap = false;  // which moves waits away from their collectives
      auto step = capture(body, options);
      Numbers numbers(group->rank());
      for (int i = 0; i < 6; ++i) {
        const auto x = numbers({2 * ranks_of(*group), 3});
        expect_same_bits(step(x), body(x), "step " + std::to_string(i));
      }
      const auto& nodes = step.graph().nodes;
      EXPECT_EQ(count_nodes(step.graph(), "cohort::all_reduce"), 2U);
      EXPECT_EQ(count_nodes(step.graph(), GraphNode::Kind::collective), 5U) << step.graph();
      EXPECT_EQ(count_nodes(step.graph(), GraphNode::Kind::wait), 5U) << step.graph();
      // Passes may put other nodes between the two.
      for (std::size_t i = 0; i < nodes.size(); ++i) {
        if (nodes[i].kind != GraphNode::Kind::collective) continue;
        EXPECT_EQ(nodes[i].group, group->id());
        const auto waits_for_it = [&](const GraphNode& each) {
          return each.kind == GraphNode::Kind::wait && each.operands.at(0).values == nodes[i].results;
        };
        EXPECT_EQ(std::count_if(nodes.begin() + static_cast<std::ptrdiff_t>(i), nodes.end(), waits_for_it), 1)
            << "behind node " << i << " of " << step.graph();
      }
    });
    EXPECT_EQ(functional::unwaited_collectives(), 0U);
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

/// A replay would use memory that may not exist any more.
TEST(CaptureRows, Gc15MemoryThatIsNoTensorIsRefused) {
  struct Best {
    float value;
    std::int32_t index;
  };
  with_torch_threads(2, [](const ProcessGroupPtr& group) {
    const Reduction<Best> best("best", [](Best& so_far, const Best& next) {
      if (next.value > so_far.value) so_far = next;
    });
    std::vector<float> values(4, 1);
    std::vector<Best> bests(3);
    const std::vector<std::pair<std::string, std::function<void(bool)>>> calls{
        {"all_reduce", [&](bool is_async) { group->all_reduce(values, {.async_op = is_async}).wait(); }},
        {"broadcast", [&](bool is_async) { group->broadcast(bests, {.async_op = is_async}).wait(); }},
        {"all_reduce", [&](bool is_async) { group->all_reduce(bests, {.op = best, .async_op = is_async}).wait(); }},
    };
    for (const auto& [name, call] : calls) {
      for (const bool is_async : {false, true}) {
        auto step = capture([&, &body = call](const at::Tensor& x) {
          body(is_async);
          return x + 1;
        });
        try {
          step(at::ones({2}));
          ADD_FAILURE() << name << " was captured";
        } catch (const CaptureError& error) {
          EXPECT_EQ(error.reason(), CaptureRefusal::unsupported_call) << name;
          EXPECT_THAT(error.refused(), testing::StartsWith(name + " on group " + group->id()));
          EXPECT_THAT(error.refused(), testing::HasSubstr("memory that is no tensor"));
          EXPECT_FALSE(error.hints().empty()) << name;
        }
      }
    }
    // Nobody is out of step.
    const auto x = at::ones({1});
    group->all_reduce(x);
    EXPECT_EQ(x.item<float>(), 2);
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

// SPDX-License-Identifier: BSD-3-Clause
//
// What must be as it was for a recorded step to be replayed: the arguments, what the thread has set, the groups.
#include <ATen/ATen.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/InferenceMode.h>
#include <cohort/torch/dtensor.h>

#include <functional>
#include <optional>
#include <ostream>
#include <vector>

#include "torch/capture/guards_support.h"
#include "torch/compat/autocast.h"

namespace cohort::test {
namespace {

using recording::Guards;

// --- arguments

struct ArgumentCase {
  std::string name;
  detail::CapturedCall recorded;
  detail::CapturedCall later;
  std::string failure;
  friend void PrintTo(const ArgumentCase& it, std::ostream* out) { *out << it.name; }
};

std::vector<ArgumentCase> argument_cases() {
  const auto x = at::ones({8, 16});
  const auto y = at::ones({4, 4});
  const auto complex = at::ones({2}, at::kComplexFloat);
  const auto memory = at::zeros({8});
  using Tensors = std::vector<at::Tensor>;
  return {
      {"Values", call_with(x), call_with(at::zeros({8, 16})), nothing},
      {"Dtype", call_with(x), call_with(x.to(at::kDouble)), "argument 1: dtype was Float and is Double"},
      {"Device", call_with(x), call_with(at::empty({8, 16}, at::kMeta)), "argument 1: device was cpu and is meta"},
      {"Sizes", call_with(x), call_with(at::ones({4, 16})), "argument 1: sizes were [8, 16] and are [4, 16]"},
      {"Dimensions", call_with(x), call_with(at::ones({8, 16, 1})),
       "argument 1: sizes were [8, 16] and are [8, 16, 1]"},
      {"Strides", call_with(y), call_with(at::ones({4, 4}).t()), "argument 1: strides were [4, 1] and are [1, 4]"},
      {"RequiresGrad", call_with(y), call_with(at::ones({4, 4}).requires_grad_()),
       "argument 1: requires_grad was false and is true"},
      {"Layout", call_with(y), call_with(at::ones({4, 4}).to_sparse()), "argument 1 was dense and is sparse"},
      {"SparseSizes", call_with(y.to_sparse()), call_with(at::ones({4, 5}).to_sparse()),
       "argument 1: sizes were [4, 4] and are [4, 5]"},
      {"Undefined", call_with(y), call_with(at::Tensor()), "argument 1 was defined and is not"},
      {"Defined", call_with(at::Tensor()), call_with(y), "argument 1 was undefined and is defined"},
      {"StillUndefined", call_with(at::Tensor()), call_with(at::Tensor()), nothing},
      {"Conjugate", call_with(complex), call_with(complex.conj()), "argument 1: dispatch keys were"},
      {"Second", call_with(x, 1, y), call_with(x, 1, x), "argument 3: sizes were [4, 4] and are [8, 16]"},
      {"InAList", call_with(1, Tensors{x, y}), call_with(1, Tensors{x, x.clone()}),
       "tensor 2 of argument 2: sizes were [4, 4] and are [8, 16]"},
      {"LongerList", call_with(Tensors{x, y}), call_with(Tensors{x, y, y}),
       "argument 1 was 2 tensors and is 3 tensors"},
      {"OtherDivision", call_with(Tensors{x}, Tensors{x, y}), call_with(Tensors{x, y}, Tensors{y}),
       "argument 1 was 1 tensors and is 2 tensors"},
      {"MoreArguments", call_with(x), call_with(x, y), "the call had 1 arguments and has 2"},
      {"Number", call_with(x, 3), call_with(x, 4), "argument 2 was 3 and is 4"},
      {"SmallNumber", call_with(1e-9), call_with(2e-9), "argument 1 was 1e-09 and is 2e-09"},
      {"Flag", call_with(true), call_with(false), "argument 1 was true and is false"},
      {"Text", call_with(std::string("mean")), call_with(std::string("sum")), "argument 1 was mean and is sum"},
      {"SameTwice", call_with(y, y), call_with(y, y.clone()), "argument 2 shared memory with argument 1 and does not"},
      {"NowTheSame", call_with(y, y.clone()), call_with(y, y), "argument 2 shares memory with argument 1 and did not"},
      {"StillTheSame", call_with(y, y), call_with(memory, memory), "argument 1: sizes were [4, 4] and are [8]"},
      {"OtherOverlap", call_with(memory.narrow(0, 0, 4), memory.narrow(0, 4, 4)),
       call_with(memory.narrow(0, 0, 4), memory.narrow(0, 2, 4)),
       "argument 2 shares memory with argument 1 in another way"},
      {"SameOverlap", call_with(memory.narrow(0, 0, 4), memory.narrow(0, 4, 4)),
       call_with(memory.narrow(0, 0, 4), memory.narrow(0, 4, 4)), nothing},
      {"Placement", call_with(Shard(0)), call_with(Shard(1)), "argument 1 was S(0) and is S(1)"},
      {"EqualPlacement", call_with(Placements{Shard(0), Replicate()}), call_with(Placements{Shard(0), Replicate()}),
       nothing},
      {"Reduction", call_with(Partial("sum")), call_with(Partial("max")), "argument 1 was P(sum) and is P(max)"},
  };
}

class Arguments : public testing::TestWithParam<ArgumentCase> {};

TEST_P(Arguments, FailWhereTheyDiffer) {
  const auto& it = GetParam();
  const Guards guards(it.recorded, {});
  EXPECT_EQ(failure_of(guards, it.recorded), nothing);
  EXPECT_THAT(failure_of(guards, it.later), testing::StartsWith(it.failure));
}

INSTANTIATE_TEST_SUITE_P(Guards, Arguments, testing::ValuesIn(argument_cases()),
                         [](const auto& it) { return it.param.name; });

TEST(ArgumentGuards, TakeGroupsByIdentityAndMeshesByValue) {
  const auto a = fake_group();
  const auto b = fake_group();
  const Guards of_group(call_with(a), {});
  EXPECT_EQ(failure_of(of_group, call_with(a)), nothing);
  EXPECT_EQ(failure_of(of_group, call_with(b)), "argument 1 was the group " + a->id() + " and is the group " + b->id());
  EXPECT_EQ(failure_of(of_group, call_with(ProcessGroupPtr())), "argument 1 was " + a->id() + " and is no group");

  const ProcessGroupGuard scope(a);
  const auto mesh = DeviceMesh::from_group(a, "cpu", {}, {"dp"});
  const Guards of_mesh(call_with(mesh), {});
  EXPECT_EQ(failure_of(of_mesh, call_with(DeviceMesh::from_group(b, "cpu", {}, {"dp"}))), nothing);
  EXPECT_THAT(failure_of(of_mesh, call_with(DeviceMesh::from_group(a, "cpu", {}, {"tp"}))),
              testing::AllOf(testing::HasSubstr("dp: 2"), testing::HasSubstr("and is DeviceMesh(cpu, tp: 2")));
}

TEST(ArgumentGuards, TakeDistributedTensorsByMeshAndPlacements) {
  const auto group = fake_group();
  const auto mesh = DeviceMesh::from_group(group, "cpu", {}, {"tp"});
  const auto distributed = [](const DeviceMesh& on, const Placement& placement, std::int64_t rows = 4) {
    return call_with(static_cast<at::Tensor>(DTensor::from_local(at::ones({rows, 4}), on, {placement})));
  };
  const Guards guards(distributed(mesh, Shard(0)), {});
  EXPECT_EQ(failure_of(guards, distributed(mesh, Shard(0))), nothing);
  const auto equal = DeviceMesh::from_group(fake_group(), "cpu", {}, {"tp"});
  EXPECT_EQ(failure_of(guards, distributed(equal, Shard(0))), nothing) << "an equal mesh over another group";
  EXPECT_EQ(failure_of(guards, distributed(mesh, Shard(0), 3)), "argument 1: sizes were [8, 4] and are [6, 4]");
  EXPECT_EQ(failure_of(guards, distributed(mesh, Replicate(), 8)), "argument 1: placements were [S(0)] and are [R]");
  const auto other = DeviceMesh::from_group(group, "cpu", {}, {"dp"});
  EXPECT_THAT(failure_of(guards, distributed(other, Shard(0))),
              testing::StartsWith("argument 1: mesh was DeviceMesh(cpu, tp: 2"));
  EXPECT_EQ(failure_of(guards, call_with(at::ones({8, 4}))), "argument 1 was distributed and is a plain tensor");
  const FromLocalOptions uneven{.sizes = std::vector<std::int64_t>{8, 4}, .strides = std::vector<std::int64_t>{4, 1}};
  EXPECT_EQ(failure_of(guards, call_with(static_cast<at::Tensor>(
                                   DTensor::from_local(at::ones({4, 4}).t(), mesh, {Shard(0)}, uneven)))),
            "argument 1: strides were [4, 1] and are [1, 4] (of this rank's part)");
}

// --- what the thread has set

/// Runs `body` while the setting is another one.
template <class Set, class Value>
void with_setting(Set&& set, Value value, Value before, const std::function<void()>& body) {
  set(value);
  body();
  set(before);
}

TEST(ModeGuards, FailWhenAModeDiffers) {
  const auto guards = guards_of({});
  EXPECT_EQ(failure_of(guards), nothing);
  {
    const at::NoGradGuard no_grad;
    EXPECT_EQ(failure_of(guards), "grad mode was on and is off");
  }
  {
    const at::AutoGradMode grad(true);
    const c10::InferenceMode inference;
    const at::AutoGradMode again(true);
    EXPECT_EQ(failure_of(guards), "inference mode was off and is on");
  }
  with_setting(enable_autocast_on_cpu, true, false, [&] {
    EXPECT_EQ(failure_of(guards), "autocast on the CPU was off and is BFloat16");
    EXPECT_EQ(failure_of(guards_of({})), nothing);
  });
  const auto set_dtype = [](at::ScalarType type) { at::set_default_dtype(c10::scalarTypeToTypeMeta(type)); };
  with_setting(set_dtype, at::kDouble, at::kFloat,
               [&] { EXPECT_EQ(failure_of(guards), "default dtype was Float and is Double"); });
  const auto set_deterministic = [](bool is_on) { at::globalContext().setDeterministicAlgorithms(is_on, false); };
  with_setting(set_deterministic, true, false,
               [&] { EXPECT_EQ(failure_of(guards), "use of deterministic algorithms was off and is on"); });
  EXPECT_EQ(failure_of(guards), nothing);
}

TEST(ModeGuards, FailWhenTheCurrentGroupIsAnotherOrTheMeshDiffers) {
  const auto group = fake_group();
  const ProcessGroupGuard current(group);
  const auto guards = guards_of({});
  EXPECT_EQ(failure_of(guards), nothing);
  {
    const ProcessGroupGuard again(group);
    EXPECT_EQ(failure_of(guards), nothing);
    const auto other = fake_group();
    const ProcessGroupGuard inner(other);
    EXPECT_EQ(failure_of(guards), "the current group was " + group->id() + " and is " + other->id());
  }
  const auto mesh = DeviceMesh::from_group(group, "cpu");
  const MeshScope scope(mesh);
  EXPECT_THAT(failure_of(guards), testing::StartsWith("the current mesh was none and is DeviceMesh(cpu"));
  const auto with_mesh = guards_of({});
  const MeshScope equal(DeviceMesh::from_group(fake_group(), "cpu"));
  EXPECT_EQ(failure_of(with_mesh), nothing);
}

// --- groups

TEST(GroupGuards, FailWhenAGroupHasEnded) {
  const auto ended = [](const std::function<void(ProcessGroupPtr&)>& end) {
    auto group = fake_group();
    auto guards = guards_of({});
    guards.add_group(group);
    guards.add_group(group);
    EXPECT_EQ(failure_of(guards), nothing);
    const auto id = group->id();
    end(group);
    const auto text = failure_of(guards);
    EXPECT_THAT(text, testing::StartsWith("group " + id));
    return text.substr(("group " + id).size());
  };
  EXPECT_EQ(ended([](ProcessGroupPtr& group) { group->abort("enough"); }), ": the group was aborted");
  EXPECT_EQ(ended([](ProcessGroupPtr& group) { group->shutdown(); }), ": the group was shut down");
  EXPECT_EQ(ended([](ProcessGroupPtr& group) { group.reset(); }), " does not exist any more");
}

}  // namespace
}  // namespace cohort::test

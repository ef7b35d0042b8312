// SPDX-License-Identifier: BSD-3-Clause
//
// What the library writes into a tensor raises the tensor's autograd version, as the tensor's own in-place functions
// do: a backward that has saved it before is then an error, and not a wrong gradient.
#include <c10/core/InferenceMode.h>
#include <cohort/torch/checkpoint.h>
#include <cohort/torch/clip_grad.h>
#include <cohort/torch/grad_scaler.h>
#include <cohort/torch/hooks.h>
#include <cohort/torch/optim.h>
#include <cohort/torch/optimizer_in_backward.h>
#include <cohort/torch/post_local_sgd.h>
#include <cohort/torch/sync_batch_norm.h>
#include <cohort/torch/zero_optimizer.h>

#include <map>

#include "support/temporary.h"
#include "torch/ddp_test.h"

namespace cohort::test {
namespace {

/// Remembers tensors' versions, and expects at its end, or when it is asked to, that they are higher.
class Watch {
 public:
  void on(const std::vector<at::Tensor>& tensors) {
    watched_.clear();
    for (const auto& each : tensors) watched_.emplace_back(each, each._version());
  }
  void expect_risen(const char* when) const {
    ASSERT_FALSE(watched_.empty());
    for (std::size_t i = 0; i < watched_.size(); ++i) {
      EXPECT_GT(watched_[i].first._version(), watched_[i].second) << "tensor " << i << ", " << when;
    }
  }

 private:
  std::vector<std::pair<at::Tensor, std::uint32_t>> watched_;
};

at::Tensor numbers(std::int64_t count = 4) {
  return torch::ones({count}, torch::kDouble);
}

struct WithBufferImpl : torch::nn::Module {
  explicit WithBufferImpl(std::int64_t size = 1) {
    weight = register_parameter("weight", torch::ones({size}, torch::kDouble));
    factor = register_buffer("factor", torch::full({size}, 2.5, torch::kDouble));
  }
  at::Tensor forward(const at::Tensor& x) { return weight * x * factor; }
  at::Tensor weight, factor;
};
TORCH_MODULE(WithBuffer);

/// Larger than what is sent together with others.
constexpr std::int64_t large = 40'000;

// --- the places

struct Place {
  const char* name;
  void (*write)(const ProcessGroupPtr& group, Watch& watch);

  friend void PrintTo(const Place& place, std::ostream* out) { *out << place.name; }
};

/// An operation on one tensor, blocking.
template <class Call>
void write_one(Watch& watch, Call&& call) {
  auto tensor = numbers();
  watch.on({tensor});
  call(tensor);
}

void write_asynchronously(const ProcessGroupPtr& group, Watch& watch) {
  auto tensor = numbers();
  watch.on({tensor});
  const auto work = group->all_reduce(tensor, {.async_op = true});
  watch.expect_risen("when the call has returned");
  work.wait();
}

void gather_into_lists(const ProcessGroupPtr& group, Watch& watch) {
  std::vector<at::Tensor> outputs{numbers(), numbers()};
  watch.on(outputs);
  group->all_gather(outputs, numbers());
}

void gather_to_each_root(const ProcessGroupPtr& group, Watch& watch) {
  for (int root = 0; root < 2; ++root) {
    std::vector<at::Tensor> outputs;
    if (group->rank() == root) watch.on(outputs = {numbers(), numbers()});
    const auto input = numbers();
    group->gather(outputs, input, {.root = root});
    EXPECT_EQ(input._version(), 0U);
  }
}

void scatter_from_each_root(const ProcessGroupPtr& group, Watch& watch) {
  for (int root = 0; root < 2; ++root) {
    std::vector<at::Tensor> inputs;
    if (group->rank() == root) inputs = {numbers(), numbers()};
    write_one(watch, [&](auto& x) { group->scatter(x, inputs, {.root = root}); });
    watch.expect_risen("by a scatter");
    for (const auto& each : inputs) EXPECT_EQ(each._version(), 0U);
  }
}

void reduce_lists(const ProcessGroupPtr& group, Watch& watch) {
  std::vector<at::Tensor> tensors{numbers(), numbers()};
  watch.on(tensors);
  group->all_reduce(tensors);
}

void reduce_together(const ProcessGroupPtr& group, Watch& watch) {
  std::vector<at::Tensor> tensors{numbers(2), numbers(3)};
  watch.on(tensors);
  group->all_reduce_coalesced(tensors);
}

void gather_together(const ProcessGroupPtr& group, Watch& watch) {
  std::vector<at::Tensor> outputs{numbers(4), numbers(6)};
  watch.on(outputs);
  std::vector<at::Tensor> inputs{numbers(2), numbers(3)};
  group->all_gather_coalesced(outputs, inputs);
  for (const auto& each : inputs) EXPECT_EQ(each._version(), 0U);
}

void scatter_sums_together(const ProcessGroupPtr& group, Watch& watch) {
  std::vector<at::Tensor> outputs{numbers(2), numbers(3)};
  watch.on(outputs);
  std::vector<at::Tensor> inputs{numbers(4), numbers(6)};
  group->reduce_scatter_coalesced(outputs, inputs);
  for (const auto& each : inputs) EXPECT_EQ(each._version(), 0U);
}

void scatter_sums_of_lists(const ProcessGroupPtr& group, Watch& watch) {
  std::vector<at::Tensor> inputs{numbers(), numbers()};
  write_one(watch, [&](auto& x) { group->reduce_scatter(x, inputs); });
}

void exchange_lists(const ProcessGroupPtr& group, Watch& watch) {
  std::vector<at::Tensor> outputs{numbers(), numbers()};
  watch.on(outputs);
  std::vector<at::Tensor> inputs{numbers(), numbers()};
  group->all_to_all(outputs, inputs);
  for (const auto& each : inputs) EXPECT_EQ(each._version(), 0U);
}

void run_a_batch(const ProcessGroupPtr& group, Watch& watch) {
  std::vector<at::Tensor> tensors{numbers(), numbers(), numbers()};
  watch.on(tensors);
  auto batch = group->batch();
  batch.all_reduce(tensors[0]);
  batch.broadcast(tensors[1], {.root = 1});
  batch.all_gather(tensors[2], numbers(2));
  const auto work = batch.run({.async_op = true});
  watch.expect_risen("when the batch has been started");
  work.wait();
}

void run_a_batch_of_messages(const ProcessGroupPtr& group, Watch& watch) {
  const auto received = numbers();
  watch.on({received});
  const auto sent = numbers();
  auto batch = group->batch();
  batch.recv(received, 1 - group->rank());
  batch.send(sent, 1 - group->rank());
  batch.run().wait();
  EXPECT_EQ(sent._version(), 0U);
}

void receive_from_anybody(const ProcessGroupPtr& group, Watch& watch) {
  const auto sending = group->send(numbers(), 1 - group->rank(), {.async_op = true});
  write_one(watch, [&](auto& x) { group->recv_any_source(x); });
  sending.wait();
}

void receive(const ProcessGroupPtr& group, Watch& watch) {
  auto tensor = numbers();
  watch.on({tensor});
  const auto peer = 1 - group->rank();
  const auto sent = numbers();
  const auto sending = group->send(sent, peer, {.async_op = true});
  group->recv(tensor, peer);
  sending.wait();
  EXPECT_EQ(sent._version(), 0U) << "what is only read keeps its version";
}

void reduce_a_view(const ProcessGroupPtr& group, Watch& watch) {
  const auto tensor = torch::ones({2, 2}, torch::kDouble);
  watch.on({tensor});
  auto view = tensor.view(-1);
  group->all_reduce(view);
}

template <std::int64_t size>
void construct(const ProcessGroupPtr& group, Watch& watch) {
  WithBuffer net(size);
  watch.on({net->weight, net->factor});
  const DistributedDataParallel ddp(net, {.process_group = group});
}

template <std::int64_t size>
void send_buffers(const ProcessGroupPtr& group, Watch& watch) {
  WithBuffer net(size);
  DistributedDataParallel ddp(net, {.process_group = group});
  watch.on({net->factor});
  ddp.sync_buffers();
}

void send_buffers_in_forward(const ProcessGroupPtr& group, Watch& watch) {
  WithBuffer net;
  DistributedDataParallel ddp(net, {.process_group = group});
  watch.on({net->factor});
  ddp.forward(numbers(1));
}

template <bool is_view, bool is_batched>
void average_gradients(const ProcessGroupPtr& group, Watch& watch) {
  Mlp net;
  DistributedDataParallel ddp(
      net, {.process_group = group, .gradient_as_bucket_view = is_view, .batched_grad_copy = is_batched});
  // A communication hook sees the gradients as autograd has left them: what rises later is our doing.
  ddp.register_comm_hook([&](GradBucket& bucket) {
    std::vector<at::Tensor> gradients;
    for (const auto& each : bucket.parameters()) gradients.push_back(each.grad());
    watch.on(gradients);
    return all_reduce_async(*group, bucket.buffer());
  });
  ddp.forward(random_batch(1, {3, 4})).sum().backward();
}

void average_delayed_gradients(const ProcessGroupPtr& group, Watch& watch) {
  Branches net;
  DistributedDataParallel ddp(
      net, {.process_group = group, .delay_all_reduce_named_params = {{"b", net->b}}, .delay_until = net->b});
  const auto loss = ddp.forward(numbers(1), true).sum();
  watch.on({net->b.grad()});
  const auto before = net->b.grad()._version();
  loss.backward();
  EXPECT_GE(net->b.grad()._version(), before + 2) << "raised by autograd and by the reduction";
}

void cast_buffers(const ProcessGroupPtr& group, Watch& watch) {
  WithBuffer net;
  watch.on({net->factor});
  const DistributedDataParallel ddp(
      net, {.process_group = group, .init_sync = false, .mixed_precision = MixedPrecision{.buffer_dtype = at::kFloat}});
}

void end_a_join(const ProcessGroupPtr& group, Watch& watch) {
  WithBuffer net;
  DistributedDataParallel ddp(net, {.process_group = group});
  join({&ddp}, [&] { watch.on({net->weight, net->factor}); });
}

void follow_in_a_join(const ProcessGroupPtr& group, Watch& watch) {
  WithBuffer net;
  // The end of the join sends no buffers then: those of rank 0 are written while it follows rank 1's forward.
  DistributedDataParallel ddp(net, {.process_group = group, .broadcast_buffers = false, .forward_sync_buffers = true});
  join({&ddp}, [&] {
    watch.on({net->factor});
    if (group->rank() == 1) ddp.forward(numbers(1)).sum().backward();
  });
}

template <std::int64_t size>
void step_zero(const ProcessGroupPtr& group, Watch& watch) {
  std::vector<at::Tensor> parameters;
  for (int i = 0; i < 4; ++i) {
    parameters.push_back(numbers(size).requires_grad_());
    parameters.back().mutable_grad() = numbers(size);
  }
  ZeroOptimizer<torch::optim::SGD> optimizer(parameters, torch::optim::SGDOptions(0.1),
                                             {.process_group = group, .bucket_bytes = 8 * large});
  watch.on(parameters);
  optimizer.step();
}

void average_models(const ProcessGroupPtr& group, Watch& watch) {
  auto parameter = numbers().requires_grad_();
  parameter.mutable_grad() = numbers();
  watch.on({parameter});
  PeriodicModelAverager({.process_group = group, .period = 2}).average_parameters(std::vector<at::Tensor>{parameter});
}

void normalise_over_all(const ProcessGroupPtr& group, Watch& watch) {
  torch::nn::Sequential net(torch::nn::BatchNorm1d(3));
  convert_sync_batch_norm(*net, group);
  const auto buffers = net->named_buffers();
  watch.on({buffers["0.running_mean"], buffers["0.running_var"]});
  net->forward(torch::randn({4, 3}));
}

void step_in_backward(const ProcessGroupPtr& group, Watch& watch) {
  Mlp net;
  DistributedDataParallel ddp(net, {.process_group = group});
  optim::AdamW optimizer(net->parameters(), 0.1);
  const OptimizerInBackward in_backward(optimizer);
  watch.on(net->parameters());
  ddp.forward(random_batch(1, {3, 4})).sum().backward();
}

/// A parameter with a sparse gradient, which is changed through its values.
at::Tensor with_sparse_gradient() {
  auto parameter = torch::ones({4, 2}).requires_grad_();
  parameter.mutable_grad() = at::sparse_coo_tensor(at::zeros({1, 1}, at::kLong), at::ones({1, 2}), {4, 2}).coalesce();
  return parameter;
}

void unscale(const ProcessGroupPtr& /*group*/, Watch& watch) {
  auto dense = torch::ones({4}).requires_grad_();
  dense.mutable_grad() = torch::ones({4});
  const auto sparse = with_sparse_gradient();
  torch::optim::SGD optimizer({dense, sparse}, 0.1);
  watch.on({dense.grad(), sparse.grad()});
  GradScaler().unscale_(optimizer);
}

void clip(const ProcessGroupPtr& /*group*/, Watch& watch) {
  auto dense = torch::ones({4}).requires_grad_();
  dense.mutable_grad() = torch::ones({4});
  const auto sparse = with_sparse_gradient();
  watch.on({dense.grad(), sparse.grad()});
  clip_grad_norm_({dense, sparse}, 0.1);
}

void load_a_checkpoint(const ProcessGroupPtr& group, Watch& watch) {
  const TemporaryFolder folder;
  const auto path = group->broadcast_bytes(folder / "step-1.ckpt");  // rank 0's
  WithBuffer net;
  auto tensor = numbers();
  Checkpoint checkpoint({.random_state = false});  // of which threads have one in common
  checkpoint.add("net", net);
  checkpoint.add("tensor", tensor);
  checkpoint.save(path, group);
  watch.on({net->weight, net->factor, tensor});
  checkpoint.load(path, group);
}

class Writes : public ::testing::TestWithParam<Place> {};

TEST_P(Writes, RaiseTheVersionOnAllRanks) {
  with_torch_threads(2, [](const ProcessGroupPtr& group) {
    Watch watch;
    GetParam().write(group, watch);
    watch.expect_risen("at the end");
  });
}

INSTANTIATE_TEST_SUITE_P(
    OfTheLibrary, Writes,
    ::testing::Values(
        Place{"AllReduce", [](const ProcessGroupPtr& group,
                              Watch& watch) { write_one(watch, [&](auto& x) { group->all_reduce(x); }); }},
        Place{"AllReduceAsynchronous", write_asynchronously},
        Place{"AllReduceAsyncFuture",
              [](const ProcessGroupPtr& group, Watch& watch) {
                write_one(watch, [&](auto& x) { all_reduce_async(*group, x).value(); });
              }},
        Place{"AllReduceOfAView", reduce_a_view},
        Place{"Reduce",
              [](const ProcessGroupPtr& group, Watch& watch) { write_one(watch, [&](auto& x) { group->reduce(x); }); }},
        Place{"Broadcast", [](const ProcessGroupPtr& group,
                              Watch& watch) { write_one(watch, [&](auto& x) { group->broadcast(x); }); }},
        Place{"AllGather", [](const ProcessGroupPtr& group,
                              Watch& watch) { write_one(watch, [&](auto& x) { group->all_gather(x, numbers(2)); }); }},
        Place{"AllGatherOfLists", gather_into_lists},
        Place{"ReduceScatter",
              [](const ProcessGroupPtr& group, Watch& watch) {
                write_one(watch, [&](auto& x) { group->reduce_scatter(x, numbers(8)); });
              }},
        Place{"AllToAll", [](const ProcessGroupPtr& group,
                             Watch& watch) { write_one(watch, [&](auto& x) { group->all_to_all(x, numbers()); }); }},
        Place{"Gather", gather_to_each_root}, Place{"Scatter", scatter_from_each_root},
        Place{"AllReduceOfLists", reduce_lists}, Place{"AllReduceCoalesced", reduce_together},
        Place{"AllGatherCoalesced", gather_together}, Place{"ReduceScatterCoalesced", scatter_sums_together},
        Place{"ReduceScatterOfLists", scatter_sums_of_lists}, Place{"AllToAllOfLists", exchange_lists},
        Place{"Batch", run_a_batch}, Place{"BatchOfMessages", run_a_batch_of_messages}, Place{"Receive", receive},
        Place{"ReceiveFromAnybody", receive_from_anybody}, Place{"DdpConstruction", construct<1>},
        Place{"DdpConstructionOfLargeTensors", construct<large>}, Place{"DdpSyncBuffers", send_buffers<1>},
        Place{"DdpSyncBuffersThatAreLarge", send_buffers<large>}, Place{"DdpForward", send_buffers_in_forward},
        Place{"DdpGradientsInBuckets", average_gradients<true, false>},
        Place{"DdpGradientsOutsideBuckets", average_gradients<false, false>},
        Place{"DdpGradientsCopiedTogether", average_gradients<true, true>},
        Place{"DdpDelayedGradients", average_delayed_gradients}, Place{"DdpCastBuffers", cast_buffers},
        Place{"JoinEnds", end_a_join}, Place{"JoinFollows", follow_in_a_join}, Place{"ZeroStep", step_zero<4>},
        Place{"ZeroStepInPlace", step_zero<large>}, Place{"ModelAverager", average_models},
        Place{"SyncBatchNorm", normalise_over_all}, Place{"OptimizerInBackward", step_in_backward},
        Place{"GradScaler", unscale}, Place{"ClipGradNorm", clip}, Place{"CheckpointLoad", load_a_checkpoint}),
    [](const auto& place) { return place.param.name; });

TEST(Versions, OfInferenceTensorsDoNotExist) {
  with_torch_threads(2, [](const ProcessGroupPtr& group) {
    at::Tensor tensor;
    {
      const c10::InferenceMode inference;
      tensor = numbers();
    }
    group->all_reduce(tensor);
    EXPECT_EQ(tensor.sum().item<double>(), 8.0);
    const c10::InferenceMode inference;
    group->all_reduce(tensor);
    EXPECT_EQ(tensor.sum().item<double>(), 16.0);
  });
}

// --- what they are for

/// The error of libtorch that a version causes, told apart from others by its text.
template <class Run>
void expect_modified_in_place(Run&& run) {
  try {
    run();
    ADD_FAILURE() << "no error";
  } catch (const c10::Error& e) {
    EXPECT_THAT(e.what(), ::testing::HasSubstr("modified by an inplace operation"));
  }
}

TEST(SavedBuffers, ThatAreSentBeforeTheirBackwardAreAnErrorOnAllRanks) {
  for (const bool is_static : {false, true}) {
    with_torch_threads(2, [is_static](const ProcessGroupPtr& group) {
      WithBuffer net;
      DistributedDataParallel ddp(net, {.process_group = group, .static_graph = is_static});
      const auto y = ddp.forward(numbers(1)).sum();
      ddp.sync_buffers();
      expect_modified_in_place([&] { y.backward(); });
    });
  }
}

TEST(SavedBuffers, ASecondForwardSendsThem) {
  for (const bool is_static : {false, true}) {
    with_torch_threads(2, [is_static](const ProcessGroupPtr& group) {
      WithBuffer net;
      DistributedDataParallel ddp(net, {.process_group = group, .static_graph = is_static});
      const auto both = ddp.forward(numbers(1)) + ddp.forward(numbers(1));
      expect_modified_in_place([&] { both.sum().backward(); });

      WithBuffer other;
      DistributedDataParallel keeps(other,
                                    {.process_group = group, .static_graph = is_static, .forward_sync_buffers = false});
      for (int i = 0; i < 3; ++i) {
        keeps.zero_grad();
        (keeps.forward(numbers(1)) + keeps.forward(numbers(1))).sum().backward();
        EXPECT_EQ(grad_of(other->weight), 5.0) << "the way that the guide gives";
      }
    });
  }
}

/// Parameters and buffers of floating-point numbers.
std::map<std::string, at::Tensor> state_of(const torch::nn::Module& module) {
  std::map<std::string, at::Tensor> all;
  for (const auto& each : module.named_parameters()) all.emplace(each.key(), each.value().detach());
  for (const auto& each : module.named_buffers()) {
    if (each.value().is_floating_point()) all.emplace(each.key(), each.value());
  }
  return all;
}

// What users do every day stays possible: batch norm in training and evaluation, and forwards without gradients.
TEST(SavedBuffers, OfBatchNormDoNotDisturbTraining) {
  for (const bool is_static : {false, true}) {
    with_torch_threads(2, [is_static](const ProcessGroupPtr& group) {
      const auto make = [] {
        torch::nn::Sequential made(torch::nn::Linear(3, 4), torch::nn::BatchNorm1d(4), torch::nn::Linear(4, 1));
        made->to(torch::kDouble);
        fill(*made, 1);
        return made;
      };
      auto net = make();
      auto alone = make();
      DistributedDataParallel ddp(net, {.process_group = group, .static_graph = is_static});
      torch::optim::SGD optimizer(ddp.parameters(), 0.1);
      torch::optim::SGD reference(alone->parameters(), 0.1);
      // Both ranks have the same inputs, so each learns what it would learn alone.
      const auto step = [](auto& model, torch::optim::SGD& stepper, int i) {
        model.train(i != 2);
        stepper.zero_grad();
        const auto loss = model.forward(random_batch(i, {5, 3})).pow(2).mean();
        {
          const torch::NoGradGuard no_grad;
          model.forward(random_batch(100 + i, {5, 3}));
        }
        loss.backward();
        stepper.step();
      };
      for (int i = 0; i < 4; ++i) {
        step(ddp, optimizer, i);
        step(*alone, reference, i);
        for (const auto& [name, value] : state_of(*alone)) {
          EXPECT_LT(distance(state_of(*net).at(name), value), 1e-12) << name << " in step " << i;
        }
      }
    });
  }
}

}  // namespace
}  // namespace cohort::test

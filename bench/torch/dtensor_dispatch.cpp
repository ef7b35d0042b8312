// SPDX-License-Identifier: BSD-3-Clause
//
// What an operator on a distributed tensor costs beside the same operator on its local part. The mesh has one rank, so
// that the parts are the tensors themselves and nothing is communicated, and the tensors have 16 elements: what is left
// is the way from the call to the kernel and back.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <cohort/current_group.h>
#include <cohort/hash_store.h>
#include <cohort/new_group.h>
#include <cohort/torch/dtensor.h>
#include <cohort/torch/mesh.h>

#include <array>
#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "measure/interleaved.h"
#include "measure/rank_processes.h"
#include "measure/statistics.h"
#include "program.h"

namespace cohort::benchmarks {

namespace {

using namespace std::chrono_literals;

/// Arguments of the operators. Those in front are sharded by rows, in the layouts that shard.
struct Arguments {
  at::Tensor x = at::linspace(-1, 1, 16).view({4, 4});
  at::Tensor y = at::ones({4, 4});
  at::Tensor written = at::zeros({4, 4});
  at::Tensor batch = at::ones({4, 2, 2});
  at::Tensor classes = at::arange(4, at::kLong);
  // As a layer has them, on every rank.
  at::Tensor weight = at::ones({4, 4});
  at::Tensor bias = at::ones({4});

  Arguments distributed(const DeviceMesh& mesh, const Placements& placements) const {
    const auto sharded = [&](const at::Tensor& tensor) { return distribute_tensor(tensor.clone(), mesh, placements); };
    const auto replicated = [&](const at::Tensor& tensor) { return distribute_tensor(tensor.clone(), mesh); };
    return {sharded(x),       sharded(y),         sharded(written), sharded(batch),
            sharded(classes), replicated(weight), replicated(bias)};
  }
};

struct Operator {
  const char* name;
  bool is_elementwise;
  at::Tensor (*call)(const Arguments&);
};

const std::array operators{
    Operator{"add", true, [](const Arguments& a) { return at::add(a.x, a.y); }},
    Operator{"add with broadcasting", true, [](const Arguments& a) { return at::add(a.x, a.bias); }},
    Operator{"add_", true, [](const Arguments& a) { return a.written.add_(a.x); }},
    Operator{"mul by a number", true, [](const Arguments& a) { return at::mul(a.x, 0.5); }},
    Operator{"relu", true, [](const Arguments& a) { return at::relu(a.x); }},
    Operator{"copy_", true, [](const Arguments& a) { return a.written.copy_(a.x); }},
    Operator{"mm", false, [](const Arguments& a) { return at::mm(a.x, a.weight); }},
    Operator{"addmm", false, [](const Arguments& a) { return at::addmm(a.bias, a.x, a.weight); }},
    Operator{"bmm", false, [](const Arguments& a) { return at::bmm(a.batch, a.batch); }},
    Operator{"sum", false, [](const Arguments& a) { return at::sum(a.x); }},
    Operator{"mean of dimension 1", false, [](const Arguments& a) { return at::mean(a.x, 1); }},
    Operator{"view", false, [](const Arguments& a) { return a.x.view({16}); }},
    Operator{"transpose", false, [](const Arguments& a) { return a.x.transpose(0, 1); }},
    Operator{"softmax", false, [](const Arguments& a) { return at::softmax(a.x, 1); }},
    Operator{"layer_norm", false, [](const Arguments& a) { return at::layer_norm(a.x, {4}, a.bias, a.bias); }},
    Operator{"embedding", false, [](const Arguments& a) { return at::embedding(a.weight, a.classes); }},
    Operator{"cat in dimension 1", false,
             [](const Arguments& a) {
               return at::cat({a.x, a.y}, 1);
             }},
    Operator{"nll_loss", false, [](const Arguments& a) { return at::nll_loss(a.x, a.classes); }},
};

/// The time of one call. All repeats take about a millisecond, short enough to lie between the interruptions of a busy
/// machine.
double nanoseconds(const Operator& op, const Arguments& arguments) {
  constexpr int repeats = 300;
  const auto begin = Clock::now();
  for (int i = 0; i < repeats; ++i) op.call(arguments);
  return seconds_since(begin) * 1e9 / repeats;
}

void measure_on(const DeviceMesh& mesh, const Placements& placements, int rounds, Report& report) {
  const Arguments local;
  const auto distributed = local.distributed(mesh, placements);
  for (const auto& op : operators) {
    const auto time = [&](std::size_t which) { return nanoseconds(op, which == 0 ? local : distributed); };
    take_turns(2, 3, time);  // warms up
    const auto times = take_turns(2, rounds, time);
    report.add({.what = fmt::format("{}, {}", op.name, to_string(placements)),
                .unit = "ns",
                .ours = median(times[1]),
                .peer = median(times[0]),
                .peer_name = "local",
                .difference = median_difference(times[1], times[0]),
                .bar = at_most(op.is_elementwise ? 1500 : 3000)});
  }
  report.print(fmt::format("operators on distributed tensors, {}, against the local part", to_string(placements)));
}

}  // namespace

}  // namespace cohort::benchmarks

int main(int argc, char** argv) {
  using namespace cohort;
  using namespace cohort::benchmarks;
  using namespace std::chrono_literals;
  Program program("Measures what an operator on a distributed tensor costs beside the one on its local part.", 101);
  program.part("dispatch", [&](Report& report) {
    at::set_num_threads(1);
    const at::NoGradGuard no_grad;
    const ProcessGroupGuard scope(
        new_group("fake", 60s, "cpu", {}, {.store = std::make_shared<HashStore>(), .rank = 0, .size = 1}));
    const auto line = init_device_mesh("cpu", {1});
    const int rounds = program.rounds();
    measure_on(line, {Replicate()}, rounds, report);
    measure_on(line, {Shard(0)}, rounds, report);
    measure_on(init_device_mesh("cpu", {1, 1}), {Shard(0), Replicate()}, rounds, report);
  });
  return program.run(argc, argv);
}

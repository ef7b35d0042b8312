// SPDX-License-Identifier: BSD-3-Clause
//
// The programs of dtensor_reference.py, with the same names, inputs and steps.
#pragma once

#include <ATen/ATen.h>
#include <cohort/torch/dtensor.h>

#include <functional>
#include <string>
#include <vector>

#include "torch/oracle/dtensor_record.h"

namespace cohort::test {

using Sizes = std::vector<std::int64_t>;

inline at::Tensor values(const Sizes& sizes, std::int64_t seed) {
  const auto count = c10::multiply_integers(sizes);
  return ((at::arange(count) * 7 + seed * 13).remainder(23) - 11).to(at::kDouble).div(8).reshape(sizes);
}

/// Where it is Partial, ranks hold summands that differ with their place.
inline DTensor tensor(const DeviceMesh& mesh, const Sizes& sizes, const Placements& placements, std::int64_t seed = 1,
                      bool needs_gradient = false) {
  auto plain = placements;
  for (std::size_t dim = 0; dim < placements.size(); ++dim) {
    if (!placements[dim].is_partial()) continue;
    seed += (static_cast<std::int64_t>(dim) + 1) * ((*mesh.coordinate())[dim] + 1);
    plain[dim] = Replicate();
  }
  const auto made = distribute_tensor(values(sizes, seed).requires_grad_(needs_gradient), mesh, plain,
                                      {.src_data_rank = std::nullopt});
  if (plain == placements) return made;
  return DTensor::from_local(made.to_local(), mesh, placements,
                             {.sizes = sizes, .strides = values(sizes, 0).strides().vec()});
}

inline void redistribute(Recorder& run, const Sizes& sizes, const Placements& from, const Placements& to) {
  const auto comma = [](const Placements& placements) {
    std::string text;
    for (const auto& each : placements) text += (text.empty() ? "" : ",") + to_string(each);
    return text;
  };
  std::string shape;
  for (const auto size : sizes) shape += (shape.empty() ? "" : "x") + std::to_string(size);
  run.program("redistribute " + shape + " " + comma(from) + " -> " + comma(to),
              [&](const auto& keep) { keep("result", tensor(run.mesh(), sizes, from).redistribute(to)); });
}

inline void all_redistributions(Recorder& run) {
  for (const auto& sizes : {Sizes{12, 12}, Sizes{5, 7}, Sizes{3, 1}}) {
    for (const Placement& from : Placements{Replicate(), Shard(0), Shard(1), Partial()}) {
      for (const Placement& to : Placements{Replicate(), Shard(0), Shard(1)}) {
        if (from != to) redistribute(run, sizes, {from}, {to});
      }
    }
  }
}

inline void some_redistributions_of_a_square(Recorder& run) {
  const Replicate r;
  const Shard s0(0);
  const Shard s1(1);
  const Partial p;
  const std::vector<std::pair<Placements, Placements>> pairs{
      {{s0, s0}, {r, r}},   {{s0, s0}, {r, s0}}, {{s0, s0}, {s0, r}}, {{s0, s0}, {s1, s1}}, {{s0, s1}, {r, r}},
      {{s0, s1}, {s1, s0}}, {{s0, r}, {r, s1}},  {{r, s0}, {s0, s0}}, {{r, r}, {s0, s1}},   {{p, r}, {r, s0}},
      {{p, p}, {r, r}},     {{p, p}, {r, s0}},   {{p, p}, {s0, s1}},  {{p, s0}, {r, s0}},   {{s0, p}, {s0, r}},
  };
  for (const auto& sizes : {Sizes{8, 8}, Sizes{5, 7}}) {
    for (const auto& [from, to] : pairs) redistribute(run, sizes, from, to);
  }
}

inline void products(Recorder& run) {
  const auto product = [&](const std::string& name, const Placement& left, const Placement& right) {
    run.program("matmul " + name, [&](const auto& keep) {
      const DTensor result(tensor(run.mesh(), {8, 4}, {left}).mm(tensor(run.mesh(), {4, 12}, {right}, 2)));
      keep("product", result);
      keep("whole", result.redistribute({Replicate()}));
    });
  };
  product("S(0) R", Shard(0), Replicate());
  product("R S(1)", Replicate(), Shard(1));
  product("S(1) S(0)", Shard(1), Shard(0));
}

struct FeedForward {
  Placements x;
  Placements column;
  Placements row;
  Placements result;
  Placements gathered{};  ///< what x is redistributed to first, if anything
  bool x_has_gradient = false;
};

/// A column-parallel layer, gelu, a row-parallel layer.
inline void feed_forward(Recorder& run, const std::string& name, const FeedForward& how) {
  const auto& mesh = run.mesh();
  const auto w1 = tensor(mesh, {8, 6}, how.column, 2, true);
  const auto b1 = tensor(mesh, {8}, how.column, 3, true);
  const auto w2 = tensor(mesh, {6, 8}, how.row, 4, true);
  const auto x = tensor(mesh, {4, 4, 6}, how.x, 1, how.x_has_gradient);
  run.program(name, [&](const auto& keep) {
    const auto whole = how.gathered.empty() ? x : x.redistribute(how.gathered);
    const auto hidden = at::gelu(at::linear(whole, w1, b1));
    const auto y = DTensor(at::linear(hidden, w2)).redistribute(how.result);
    keep("hidden", hidden);
    keep("y", y);
    (y * y).sum().backward();
    keep("w1.grad", w1.grad());
    keep("b1.grad", b1.grad());
    keep("w2.grad", w2.grad());
    if (how.x_has_gradient) keep("x.grad", x.grad());
  });
}

inline void embeddings(Recorder& run) {
  const auto words = distribute_tensor((at::arange(12) * 5 + 1).remainder(8).reshape({3, 4}), run.mesh(), {},
                                       {.src_data_rank = std::nullopt});
  const auto embed = [&](const std::string& name, const Placement& placement) {
    const auto table = tensor(run.mesh(), {8, 4}, {placement}, 1, true);
    run.program("embedding by " + name, [&](const auto& keep) {
      const auto found = DTensor(at::embedding(table, words)).redistribute({Replicate()});
      keep("found", found);
      (found * tensor(run.mesh(), {3, 4, 4}, {Replicate()}, 2)).sum().backward();
      keep("table.grad", table.grad());
    });
  };
  embed("rows", Shard(0));
  embed("columns", Shard(1));
}

inline void norms(Recorder& run) {
  const auto soften = [&](const std::string& name, const Placement& placement) {
    const auto scores = tensor(run.mesh(), {4, 8}, {placement});
    run.program("softmax, the " + name + " dimension sharded",
                [&](const auto& keep) { keep("result", DTensor(at::softmax(scores, 1)).redistribute({placement})); });
  };
  soften("kept", Shard(0));
  soften("normalized", Shard(1));
  run.program("layer norm of a sharded sequence", [&](const auto& keep) {
    const auto x = tensor(run.mesh(), {2, 4, 6}, {Shard(1)}, 1, true);
    const auto weight = tensor(run.mesh(), {6}, {Replicate()}, 2, true);
    const auto bias = tensor(run.mesh(), {6}, {Replicate()}, 3, true);
    const auto y = at::layer_norm(x, {6}, weight, bias);
    keep("y", y);
    (y * tensor(run.mesh(), {2, 4, 6}, {Shard(1)}, 4)).sum().backward();
    keep("x.grad", x.grad());
    keep("weight.grad", weight.grad());
    keep("bias.grad", bias.grad());
  });
}

inline void views(Recorder& run) {
  const auto look = [&](const std::string& name, const Sizes& sizes, std::int64_t dim, const auto& view) {
    run.program("view: " + name,
                [&](const auto& keep) { keep("view", view(tensor(run.mesh(), sizes, {Shard(dim)}))); });
  };
  look("transpose", {4, 6}, 0, [](const at::Tensor& x) { return x.t(); });
  look("permute", {4, 6, 2}, 1, [](const at::Tensor& x) { return x.permute({2, 0, 1}); });
  look("merge, the first sharded", {4, 2, 3}, 0, [](const at::Tensor& x) { return x.view({8, 3}); });
  look("merge, the second sharded", {2, 4, 3}, 1, [](const at::Tensor& x) { return x.reshape({8, 3}); });
  look("split", {8, 3}, 0, [](const at::Tensor& x) { return x.view({4, 2, 3}); });
  look("unsqueeze", {4, 6}, 0, [](const at::Tensor& x) { return x.unsqueeze(0); });
}

inline void reductions(Recorder& run) {
  const auto reduce = [&](const std::string& name, const auto& function) {
    run.program(name, [&](const auto& keep) {
      const DTensor reduced(function(tensor(run.mesh(), {8, 4}, {Shard(0)})));
      keep("reduced", reduced);
      keep("whole", reduced.redistribute({Replicate()}));
    });
  };
  reduce("sum of the sharded dimension", [](const at::Tensor& x) { return x.sum(0); });
  reduce("sum of the other dimension", [](const at::Tensor& x) { return x.sum(1); });
  reduce("sum of everything", [](const at::Tensor& x) { return x.sum(); });
  reduce("mean of the sharded dimension", [](const at::Tensor& x) { return x.mean(0); });
  reduce("largest of the sharded dimension", [](const at::Tensor& x) { return x.amax(0); });
}

inline void elementwise(Recorder& run) {
  const auto& mesh = run.mesh();
  const auto compute = [&](const std::string& name, const auto& function) {
    run.program(name, [&](const auto& keep) { keep("result", function()); });
  };
  compute("sum of two Partial", [&] {
    return tensor(mesh, {4, 4}, {Partial()}) + tensor(mesh, {4, 4}, {Partial()}, 2);
  });
  compute("product of S(0) and R", [&] {
    return tensor(mesh, {4, 4}, {Shard(0)}) * tensor(mesh, {4}, {Replicate()}, 2);
  });
  compute("relu of a Partial", [&] { return tensor(mesh, {4, 4}, {Partial()}).relu(); });
  compute("relu of S(0)", [&] { return tensor(mesh, {5, 4}, {Shard(0)}).relu(); });
}

/// All of them, on a line and, for four ranks, on a square.
inline std::vector<Record> run_programs(const ProcessGroupPtr& group) {
  const Replicate r;
  const Shard s0(0);
  const Shard s1(1);
  Recorder line(init_device_mesh("cpu", {group->size()}, {}, {.process_group = group}));
  all_redistributions(line);
  products(line);
  feed_forward(line, "tensor parallel", {.x = {r}, .column = {s0}, .row = {s1}, .result = {r}});
  feed_forward(line, "tensor parallel, with the input's gradient",
               {.x = {r}, .column = {s0}, .row = {s1}, .result = {r}, .x_has_gradient = true});
  feed_forward(line, "sequence parallel",
               {.x = {s1}, .column = {s0}, .row = {s1}, .result = {s1}, .gathered = {r}, .x_has_gradient = true});
  embeddings(line);
  norms(line);
  views(line);
  reductions(line);
  elementwise(line);
  auto records = line.records();
  if (group->size() == 4) {
    Recorder square(init_device_mesh("cpu", {2, 2}, {}, {.process_group = group}));
    some_redistributions_of_a_square(square);
    feed_forward(square, "data and tensor parallel",
                 {.x = {s0, r}, .column = {r, s0}, .row = {r, s1}, .result = {s0, r}});
    records.insert(records.end(), square.records().begin(), square.records().end());
  }
  return records;
}

}  // namespace cohort::test

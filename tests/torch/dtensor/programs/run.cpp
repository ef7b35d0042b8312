// SPDX-License-Identifier: BSD-3-Clause
//
// Runs programs on ranks that are threads and compares every value and every gradient with the dense ones.
#include <cohort/error.h>
#include <cohort/torch/dtensor.h>
#include <cohort/torch/mesh.h>
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <numeric>
#include <sstream>

#include "torch/dtensor/dense.h"
#include "torch/dtensor/programs/program.h"
#include "torch/torch_ranks.h"

namespace cohort::test::programs {

namespace {

using namespace std::chrono_literals;

/// What is said of views that would have to cut a sharded dimension, and of tensors written in place that would have to
/// lie otherwise. Backward has such views and writes of its own.
bool is_documented_refusal(const std::exception& error) {
  const std::string_view text = error.what();
  const auto has = [&](std::string_view part) { return text.find(part) != std::string_view::npos; };
  const bool is_in_place =
      has("add_.Tensor(") || has("mul_.Tensor(") || has("copy_(") || has("scatter_add_(") || has("index_add_(");
  return has("the view would cut or remove a sharded dimension") ||
         (is_in_place && has("the operator has no rule for these placements"));
}

std::atomic<std::size_t> refused{0};

/// A program on one rank.
class Run {
 public:
  Run(const Program& program, const DeviceMesh& mesh, int rank) : program_(program), mesh_(mesh), rank_(rank) {}

  /// What is wrong. All ranks go to the end, unless something is thrown.
  std::string run() {
    dense_ = run_dense(program_);
    for (std::size_t i = 0; i < program_.values.size(); ++i) {
      values_.push_back(value(i));
      compare(values_[i].detach(), dense_[i], fmt::format("value {} ({})", i, program_.values[i].op));
    }
    backward();
    return failures_;
  }

 private:
  at::Tensor input(std::size_t number) const {
    const auto& input = program_.values[number];
    Random random(static_cast<std::uint32_t>(number));
    const auto whole = dense_[number].detach();
    const auto parts = distribute_dense(whole, input.placements, program_.shape, random);
    const auto part = parts[static_cast<std::size_t>(rank_)].contiguous();
    const auto made =
        DTensor::from_local(part, mesh_, input.placements, {.sizes = input.numbers, .strides = whole.strides().vec()});
    auto leaf = made.detach();
    if (whole.is_floating_point()) leaf.set_requires_grad(true);
    return leaf;
  }

  at::Tensor value(std::size_t number) const {
    const auto& step = program_.values[number];
    if (step.op == "input") return input(number);
    Tensors arguments;
    for (const auto each : step.arguments) arguments.push_back(values_[each]);
    if (step.op == "redistribute") return DTensor(arguments[0]).redistribute(step.placements);
    const auto& op = operator_named(step.op);
    try {
      return op.run(arguments, step.numbers);
    } catch (const NotSupportedError& error) {
      if (!op.may_refuse || !is_documented_refusal(error)) throw;
    }
    for (auto& each : arguments) each = DTensor(each).redistribute({});
    return op.run(arguments, step.numbers);
  }

  void compare(const at::Tensor& actual, const at::Tensor& expected, const std::string& what) {
    if (!is_dtensor(actual)) {
      fail(what + " is not distributed");
      return;
    }
    const auto placements = to_string(DTensor(actual).placements());
    const auto whole = DTensor(actual).full_tensor();
    if (actual.sizes() != expected.sizes() || whole.sizes() != expected.sizes()) {
      return fail(fmt::format("{} as {} has other sizes", what, placements));
    }
    const auto wanted = expected.detach().to(at::kDouble);
    if (at::allclose(whole.to(at::kDouble), wanted, 1e-8, 1e-8, true)) return;
    std::ostringstream text;
    text << what << " as " << placements << " is wrong on rank " << rank_ << ": expected\n"
         << wanted << "\nactual\n"
         << whole;
    fail(text.str());
  }

  /// Weighs and sums what no operator uses.
  static at::Tensor loss_of(const Program& program, const Tensors& values, const DeviceMesh* mesh) {
    at::Tensor loss;
    for (std::size_t i = 0; i < values.size(); ++i) {
      const bool is_used = std::any_of(program.values.begin(), program.values.end(), [&](const Value& each) {
        return std::find(each.arguments.begin(), each.arguments.end(), i) != each.arguments.end();
      });
      if (is_used || !values[i].is_floating_point()) continue;
      auto weights = at::linspace(0.5, 1.5, values[i].numel(), at::kDouble).view(values[i].sizes());
      if (mesh != nullptr) weights = distribute_tensor(weights, *mesh, {}, {.src_data_rank = std::nullopt});
      const auto term = (values[i] * weights).sum();
      loss = loss.defined() ? loss + term : term;
    }
    return loss;
  }

  void backward() {
    const auto expected = loss_of(program_, dense_, nullptr);
    const auto actual = loss_of(program_, values_, &mesh_);
    if (!expected.defined() || !expected.requires_grad()) return;
    expected.backward();
    try {
      actual.backward();
    } catch (const NotSupportedError& error) {
      if (!is_documented_refusal(error)) throw;
      if (rank_ == 0) ++refused;
      return;
    }
    for (std::size_t i = 0; i < values_.size(); ++i) {
      if (!dense_[i].is_leaf() || !dense_[i].grad().defined()) continue;
      if (!values_[i].grad().defined()) {
        fail(fmt::format("value {} has no gradient", i));
        continue;
      }
      compare(values_[i].grad(), dense_[i].grad(), fmt::format("the gradient of value {}", i));
    }
  }

  void fail(const std::string& what) { failures_ += (failures_.empty() ? "" : "\n") + what; }

  const Program& program_;
  const DeviceMesh& mesh_;
  int rank_;
  Tensors dense_{};
  Tensors values_{};
  std::string failures_{};
};

/// What the ranks say about the programs, one after the other; the first failure of each counts, if it is not that
/// another rank has failed.
class Reports {
 public:
  explicit Reports(std::size_t programs) : failures_(programs), is_echo_(programs, false) {}

  void add(std::size_t program, const std::string& failure, bool is_echo) {
    const std::lock_guard lock(mutex_);
    if (failure.empty() || (!failures_[program].empty() && (is_echo || !is_echo_[program]))) return;
    failures_[program] = failure;
    is_echo_[program] = is_echo;
  }
  std::vector<std::string> take() { return std::move(failures_); }

 private:
  std::mutex mutex_;
  std::vector<std::string> failures_;
  std::vector<bool> is_echo_;
};

/// Returns how many programs were run: an error ends the group, so that no rank waits for one that has given up.
std::size_t run_from(const std::vector<Program>& programs, std::size_t first, Reports& reports) {
  const auto& shape = programs.at(0).shape;
  const auto ranks = std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies<>());
  std::mutex mutex;
  auto end = programs.size();
  with_torch_threads(
      static_cast<int>(ranks),
      [&](const ProcessGroupPtr& group) {
        const auto mesh = init_device_mesh("cpu", shape, {}, {.process_group = group});
        for (auto i = first; i < programs.size(); ++i) {
          try {
            reports.add(i, Run(programs[i], mesh, group->rank()).run(), false);
          } catch (const std::exception& error) {
            const bool is_echo = dynamic_cast<const AbortedError*>(&error) != nullptr;
            reports.add(i, fmt::format("rank {}: {}", group->rank(), error.what()), is_echo);
            for (const auto& each : mesh.all_groups()) each->abort("a program has failed");
            const std::lock_guard lock(mutex);
            end = std::min(end, i + 1);
            return;
          }
        }
      },
      10s);
  return end;
}

}  // namespace

std::vector<std::string> failures_of(const std::vector<Program>& programs) {
  Reports reports(programs.size());
  for (std::size_t next = 0; next < programs.size();) next = run_from(programs, next, reports);
  return reports.take();
}

std::size_t refused_backwards() {
  return refused;
}

std::string failure_of(const Program& program) {
  return failures_of({program}).at(0);
}

}  // namespace cohort::test::programs

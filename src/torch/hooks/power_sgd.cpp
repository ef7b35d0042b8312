// SPDX-License-Identifier: BSD-3-Clause
#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <cohort/error.h>
#include <cohort/log.h>
#include <cohort/torch/power_sgd.h>

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "torch/flatten.h"
#include "torch/hooks/hook_support.h"
#include "torch/hooks/orthogonalize.h"
#include "torch/hooks/power_sgd_memory.h"

namespace cohort {

/// One call of the hook for one bucket.
class PowerSgdStep {
 public:
  PowerSgdStep(PowerSgdState& state, GradBucket& bucket) : state_(state), bucket_(bucket) {
    hooks::refuse_to_capture_counting("the communication hook power_sgd");
  }

  bool is_warming_up() const { return state_.iteration_ < state_.options_.start_power_sgd_iter; }
  TensorFuture average() {
    finish_bucket();
    return hooks::averaged(group(), bucket_.buffer());
  }
  TensorFuture by_gradient();
  TensorFuture by_bucket();

 private:
  using Memory = PowerSgdMemory;

  /// Matrices of one shape, [count, n, m], as copies or as views of the buffer. They become the result.
  struct Group {
    at::Tensor matrices;
    std::vector<at::Tensor> homes;  // the gradients to copy them back to, if they are copies
    std::int64_t rank = 0;
    at::Tensor p{};  // [count, n, rank], part of Memory::p
    at::Tensor q{};

    void bring_home() const {
      for (std::size_t i = 0; i < homes.size(); ++i) {
        homes[i].copy_(matrices[static_cast<std::int64_t>(i)].view(homes[i].sizes()));
      }
    }
  };

  ProcessGroup& group() const { return *state_.options_.process_group; }
  std::shared_ptr<Memory> memory() {
    auto& memory = state_.memories_[bucket_.index()];
    if (!memory) memory = std::make_shared<Memory>();
    return memory;
  }
  std::int64_t rank_for(std::int64_t n, std::int64_t m) const {
    return std::min({n, m, state_.options_.matrix_approximation_rank});
  }
  bool is_worth_it(const at::Tensor& gradient) const {
    if (gradient.dim() == 0 || gradient.numel() == 0) return false;
    const auto n = gradient.size(0);
    const auto m = gradient.numel() / n;
    return static_cast<double>((n + m) * rank_for(n, m)) * state_.options_.min_compression_rate <
           static_cast<double>(n * m);
  }
  std::vector<Group> group_by_shape(const std::vector<at::Tensor>& gradients) const;
  void add_error(const at::Tensor& input, Memory& memory) const;
  void prepare_factors(std::vector<Group>& groups, Memory& memory);
  void count(std::int64_t before, std::int64_t after);
  void finish_bucket();
  TensorFuture compress(std::vector<Group> groups, const std::shared_ptr<Memory>& memory) const;

  PowerSgdState& state_;
  GradBucket& bucket_;
};

std::vector<PowerSgdStep::Group> PowerSgdStep::group_by_shape(const std::vector<at::Tensor>& gradients) const {
  std::vector<Group> groups;
  const auto as_matrix = [](const at::Tensor& gradient) { return gradient.reshape({gradient.size(0), -1}); };
  if (!state_.options_.batch_tensors_with_same_shape) {
    for (const auto& gradient : gradients) {
      const auto matrix = as_matrix(gradient);
      // reshape() has made a copy if the gradient is not a matrix in memory order.
      Group one{.matrices = matrix.unsqueeze(0), .homes = {}, .rank = rank_for(matrix.size(0), matrix.size(1))};
      if (!matrix.is_alias_of(gradient)) one.homes = {gradient};
      groups.push_back(std::move(one));
    }
    return groups;
  }
  std::map<std::pair<std::int64_t, std::int64_t>, std::pair<std::vector<at::Tensor>, std::vector<at::Tensor>>> by_shape;
  for (const auto& gradient : gradients) {
    const auto matrix = as_matrix(gradient);
    auto& [matrices, homes] = by_shape[{matrix.size(0), matrix.size(1)}];
    matrices.push_back(matrix);
    homes.push_back(gradient);
  }
  for (auto& [shape, members] : by_shape) {
    groups.push_back({.matrices = at::stack(members.first),
                      .homes = std::move(members.second),
                      .rank = rank_for(shape.first, shape.second)});
  }
  return groups;
}

void PowerSgdStep::add_error(const at::Tensor& input, Memory& memory) const {
  if (!state_.options_.use_error_feedback) return;
  if (!memory.error.defined()) {
    memory.error = at::zeros_like(input);
  } else if (memory.error.numel() != input.numel()) {
    throw Error(
        fmt::format("PowerSGD: bucket {} had {} elements and now has {}; its buckets must stay the same once "
                    "compression has begun (start_power_sgd_iter is {})",
                    bucket_.index(), memory.error.numel(), input.numel(), state_.options_.start_power_sgd_iter));
  } else {
    if (memory.error.device() != input.device())
      memory.error = memory.error.to(input.device());  // loaded from a checkpoint
    input.add_(memory.error);
  }
  memory.error.copy_(input);  // the result is subtracted once it is known
}

/// Makes P and Q as parts of two flat tensors. Q is orthonormal: the last step's, or random and the same on all ranks.
void PowerSgdStep::prepare_factors(std::vector<Group>& groups, Memory& memory) {
  std::int64_t p_size = 0;
  std::int64_t q_size = 0;
  for (const auto& each : groups) {
    p_size += each.matrices.size(0) * each.matrices.size(1) * each.rank;
    q_size += each.matrices.size(0) * each.matrices.size(2) * each.rank;
  }
  const auto options = bucket_.buffer().options();
  const bool has_last =
      state_.options_.warm_start && memory.q.defined() && memory.p.numel() == p_size && memory.q.numel() == q_size;
  if (!has_last) {
    memory.p = at::empty({p_size}, options);
    memory.q = at::empty({q_size}, options);
  } else if (memory.q.device() != options.device()) {
    memory.p = memory.p.to(options.device());
    memory.q = memory.q.to(options.device());
  }
  std::int64_t p_offset = 0;
  std::int64_t q_offset = 0;
  const auto part = [](const at::Tensor& row, std::int64_t& offset, std::vector<std::int64_t> sizes) {
    const auto length = sizes[0] * sizes[1] * sizes[2];
    auto view = row.narrow(0, offset, length).view(sizes);
    offset += length;
    return view;
  };
  for (auto& each : groups) {
    each.p = part(memory.p, p_offset, {each.matrices.size(0), each.matrices.size(1), each.rank});
    each.q = part(memory.q, q_offset, {each.matrices.size(0), each.matrices.size(2), each.rank});
  }
  if (!has_last) {
    // The golden ratio's bits keep seeds of neighbouring draws and of neighbouring states apart.
    const auto seed = state_.options_.random_seed + 0x9E3779B97F4A7C15ULL * ++state_.draws_;
    const auto generator = at::detail::createCPUGenerator(seed);
    for (const auto& each : groups) {
      const auto type = options.dtype() == at::kDouble ? at::kDouble : at::kFloat;
      each.q.copy_(at::randn(each.q.sizes(), generator, at::TensorOptions(type)));
    }
  }
  for (const auto& each : groups) {
    if (has_last) hooks::fill_zero_columns(each.q, state_.iteration_);
    hooks::orthogonalize(each.q, 0);
  }
}

void PowerSgdStep::count(std::int64_t before, std::int64_t after) {
  state_.stats_.numel_before += before;
  state_.stats_.numel_after += after;
}

void PowerSgdStep::finish_bucket() {
  if (!bucket_.is_last()) return;
  const auto& options = state_.options_;
  if (++state_.iteration_ == options.start_power_sgd_iter) {
    log(LogLevel::info, fmt::format("PowerSGD: compression begins after {} iterations", state_.iteration_));
  }
  if (state_.iteration_ >= state_.next_report_ && state_.stats_.numel_after > 0) {
    log(LogLevel::info,
        fmt::format("PowerSGD: iteration {}, {} elements sent for {}: compressed {:.1f} times", state_.iteration_,
                    state_.stats_.numel_after, state_.stats_.numel_before, state_.stats_.compression_rate()));
    state_.next_report_ = state_.iteration_ + std::max<std::int64_t>(1, options.compression_stats_logging_frequency);
  }
}

/// Starts the reductions of P and Q, which are in `memory`. The matrices hold the result when the future is complete.
TensorFuture PowerSgdStep::compress(std::vector<Group> groups, const std::shared_ptr<Memory>& memory) const {
  if (groups.empty()) return completed_future(memory->q);
  for (const auto& each : groups) each.p.copy_(hooks::multiply(each.matrices, each.q));
  // Q is computed from the sum. Waiting for it here, and not in a step of the chain, keeps the order of collectives the
  // same on all ranks, whatever else uses the group.
  all_reduce_async(group(), memory->p).value();
  for (const auto& each : groups) {
    hooks::orthogonalize(each.p, state_.options_.orthogonalization_epsilon);
    each.q.copy_(hooks::multiply(each.matrices.transpose(1, 2), each.p));
  }
  const auto size = group().size();
  return all_reduce_async(group(), memory->q).then([groups = std::move(groups), size](const at::Tensor& q) {
    q.div_(size);
    for (const auto& each : groups) {
      each.matrices.copy_(hooks::multiply(each.p, each.q.transpose(1, 2)));
      each.bring_home();
    }
    return q;
  });
}

TensorFuture PowerSgdStep::by_gradient() {
  auto input = bucket_.buffer();
  const auto own = memory();
  add_error(input, *own);

  std::vector<at::Tensor> large;
  std::vector<at::Tensor> small;
  for (const auto& gradient : bucket_.gradients()) {
    if (is_worth_it(gradient)) {
      large.push_back(gradient);
    } else if (gradient.numel() > 0) {
      small.push_back(gradient);
    }
  }
  auto groups = group_by_shape(large);
  prepare_factors(groups, *own);
  const auto row = small.empty() ? at::empty({0}, input.options()) : flattened(small);
  count(input.numel(), row.numel() + own->p.numel() + own->q.numel());

  auto whole = small.empty() ? completed_future(row) : all_reduce_async(group(), row);
  auto compressed = compress(std::move(groups), own);
  const auto keeps = state_.options_.warm_start;
  const auto has_error = state_.options_.use_error_feedback;
  const auto size = group().size();
  finish_bucket();
  return collect_all<at::Tensor>({whole, compressed})
      .then([input, own, small, size, keeps, has_error](const std::vector<at::Tensor>& results) {
        copy_from_flat(results[0].div(size), small);
        if (has_error) own->error.sub_(input);
        if (!keeps) own->p = own->q = at::Tensor();
        return input;
      });
}

TensorFuture PowerSgdStep::by_bucket() {
  auto input = bucket_.buffer();
  const auto count_of_elements = input.numel();
  const auto side = static_cast<std::int64_t>(std::ceil(std::sqrt(static_cast<double>(count_of_elements))));
  const auto own = memory();
  const auto padded = at::constant_pad_nd(input.view(-1), {0, side * side - count_of_elements});
  add_error(padded, *own);

  std::vector<Group> one{{.matrices = padded.view({1, side, side}), .homes = {}, .rank = rank_for(side, side)}};
  prepare_factors(one, *own);
  count(count_of_elements, own->p.numel() + own->q.numel());
  auto compressed = compress(std::move(one), own);
  const auto keeps = state_.options_.warm_start;
  const auto has_error = state_.options_.use_error_feedback;
  finish_bucket();
  return compressed.then([input, padded, own, keeps, has_error, count_of_elements](const at::Tensor& /*q*/) {
    if (has_error) own->error.sub_(padded);
    if (!keeps) own->p = own->q = at::Tensor();
    input.copy_(padded.narrow(0, 0, count_of_elements).view(input.sizes()));
    return input;
  });
}

namespace hooks {

namespace {

using StepFunction = TensorFuture (PowerSgdStep::*)();

CommHook power_sgd_by(std::shared_ptr<PowerSgdState> state, const char* name, StepFunction step) {
  if (!state) throw ValueError(fmt::format("the communication hook {} needs a PowerSgdState, not null", name));
  return NamedHook{name, [state = std::move(state), name, step](GradBucket& bucket) {
                     PowerSgdStep work(*state, bucket);
                     if (work.is_warming_up() || is_sparse(bucket.buffer()) || bucket.buffer().numel() == 0) {
                       return work.average();
                     }
                     expect_floats(bucket.buffer(), name);
                     return (work.*step)();
                   }};
}

}  // namespace

CommHook power_sgd(std::shared_ptr<PowerSgdState> state) {
  return power_sgd_by(std::move(state), "power_sgd", &PowerSgdStep::by_gradient);
}

CommHook batched_power_sgd(std::shared_ptr<PowerSgdState> state) {
  return power_sgd_by(std::move(state), "batched_power_sgd", &PowerSgdStep::by_bucket);
}

}  // namespace hooks

}  // namespace cohort

// SPDX-License-Identifier: BSD-3-Clause
#include "torch/sync_batch_norm/normalize.h"

#include <ATen/ATen.h>
#include <ATen/Context.h>
#include <cohort/error.h>
#include <cohort/torch/tensor.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/custom_class.h>

#include <fmt/format.h>

#include <utility>
#include <vector>

#include "torch/compat/optional_tensor.h"

namespace cohort {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::tensor_list;

/// All dimensions except the channels.
std::vector<std::int64_t> dimensions_to_sum(const at::Tensor& input) {
  std::vector<std::int64_t> dimensions{0};
  for (std::int64_t each = 2; each < input.dim(); ++each) dimensions.push_back(each);
  return dimensions;
}

/// A vector over channels in the input's shape.
at::Tensor over_channels(const at::Tensor& vector, const at::Tensor& input) {
  std::vector<std::int64_t> sizes(static_cast<std::size_t>(input.dim()), 1);
  sizes[1] = vector.numel();
  return vector.view(sizes);
}

/// The dtype of the statistics: half precision has too few bits for them.
at::ScalarType statistics_type(const at::Tensor& input) {
  return input.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

struct Statistics {
  at::Tensor mean;
  at::Tensor variance;  // biased
  at::Tensor count;     // one number
};

/// Combined as in Chan, Golub and LeVeque, "Updating formulae and a pairwise algorithm for computing sample variances"
/// (1982), in double precision, as these are few numbers. Counts stay on the device: nothing here waits for a GPU.
Statistics statistics_over(ProcessGroup& group, const at::Tensor& input) {
  const auto channels = input.size(1);
  const auto count = input.numel() / channels;
  const auto mine = at::zeros({2 * channels + 1}, at::TensorOptions(input.device()).dtype(at::kDouble));
  if (count > 0) {
    const auto dimensions = dimensions_to_sum(input);
    const auto [variance, mean] =
        at::var_mean(input.to(statistics_type(input)), at::IntArrayRef(dimensions), /*unbiased=*/false);
    mine.narrow(0, 0, channels).copy_(mean);
    mine.narrow(0, channels, channels).copy_(variance);
    mine.narrow(0, 2 * channels, 1).fill_(static_cast<double>(count));
  }
  const auto all = at::empty({group.size(), 2 * channels + 1}, mine.options());
  group.all_gather(buffer_of(all), const_buffer_of(mine), {.stream = current_stream(mine)});

  const auto means = all.narrow(1, 0, channels);
  const auto variances = all.narrow(1, channels, channels);
  const auto counts = all.narrow(1, 2 * channels, 1);
  const auto total = counts.sum();
  const auto shares = counts / total.clamp_min(1);  // 0 for a rank without input
  const auto mean = (means * shares).sum(0);
  const auto variance = ((variances + (means - mean).square()) * shares).sum(0);
  return {mean, variance, total};
}

void update_running(const BatchNormArguments& arguments, const Statistics& statistics) {
  // If no rank had any input, nothing changes; this does not wait for the device to tell the count.
  const auto momentum = (statistics.count > 0).to(at::kDouble) * arguments.momentum;
  const auto blend = [&](const at::Tensor& running, const at::Tensor& now) {
    if (running.defined()) running.copy_(running + (now - running) * momentum);
  };
  blend(arguments.running_mean, statistics.mean);
  blend(arguments.running_var,
        statistics.variance * (statistics.count / (statistics.count - 1).clamp_min(1)));  // unbiased
}

/// Holds the group in the graph's node.
struct GroupCapsule : torch::CustomClassHolder {
  explicit GroupCapsule(ProcessGroupPtr given) : group(std::move(given)) {}
  ProcessGroupPtr group;
};

class SyncBatchNormFunction : public torch::autograd::Function<SyncBatchNormFunction> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& input, const OptionalTensor& weight_or_none,
                            const OptionalTensor& bias_or_none, const BatchNormArguments& arguments,
                            const ProcessGroupPtr& group) {
    const auto weight = tensor_or_undefined(weight_or_none);
    const auto bias = tensor_or_undefined(bias_or_none);
    const auto statistics = statistics_over(*group, input);
    update_running(arguments, statistics);
    const auto inverse = (statistics.variance + arguments.eps).rsqrt();  // of the standard deviation

    // One pass over the input: y = x * factor + shift.
    const auto type = statistics_type(input);
    const auto factor = weight.defined() ? inverse * weight : inverse;
    const auto shift = bias.defined() ? bias - statistics.mean * factor : -statistics.mean * factor;
    const auto output =
        at::addcmul(over_channels(shift.to(type), input), input.to(type), over_channels(factor.to(type), input));

    context->save_for_backward({input, weight, statistics.mean, inverse, statistics.count});
    context->saved_data["input_needs_gradient"] = input.requires_grad();
    context->saved_data["has_bias"] = bias.defined();
    context->saved_data["group"] = c10::IValue::make_capsule(c10::make_intrusive<GroupCapsule>(group));
    return output.to(input.scalar_type());
  }

  /// With n inputs x for a channel on all ranks, mean m, inverse deviation i and weight w:
  ///   dx = w i (dy - sum(dy) / n - (x - m) i^2 sum(dy (x - m)) / n)        sums over all ranks
  ///   dw = i sum(dy (x - m)),  db = sum(dy)                                sums over this rank
  static tensor_list backward(AutogradContext* context, const tensor_list& gradients) {
    if (at::GradMode::is_enabled()) {
      throw NotSupportedError(
          "SyncBatchNorm has no second derivatives: backward with create_graph goes through plain batch norm only");
    }
    const auto saved = context->get_saved_variables();
    const auto &input = saved[0], &weight = saved[1], &mean = saved[2], &inverse = saved[3], &count = saved[4];
    const auto group =
        c10::static_intrusive_pointer_cast<GroupCapsule>(context->saved_data["group"].toCapsule())->group;

    const auto type = statistics_type(input);
    const auto channels = input.size(1);
    const auto dimensions = dimensions_to_sum(input);
    const auto dy = gradients[0].to(type);
    auto centred = input.to(type) - over_channels(mean.to(type), input);
    const auto sums = at::cat({dy.sum(dimensions), (dy * centred).sum(dimensions)});

    tensor_list results(5);
    if (weight.defined()) results[1] = sums.narrow(0, channels, channels) * inverse;
    if (context->saved_data["has_bias"].toBool()) results[2] = sums.narrow(0, 0, channels).clone();
    if (context->saved_data["input_needs_gradient"].toBool()) {
      group->all_reduce(buffer_of(sums), {.stream = current_stream(sums)});
      const auto factor = weight.defined() ? inverse * weight : inverse;
      const auto each = factor / count.clamp_min(1);
      const auto slope = -(each * inverse * inverse * sums.narrow(0, channels, channels)).to(type);
      const auto shift = -(each * sums.narrow(0, 0, channels)).to(type);
      results[0] = centred.mul_(over_channels(slope, input))
                       .add_(over_channels(shift, input))
                       .addcmul_(dy, over_channels(factor.to(type), input))
                       .to(input.scalar_type());
    }
    return results;
  }
};

}  // namespace

void check_batch_norm_input(const at::Tensor& input, std::int64_t channels) {
  if (input.dim() < 2) {
    throw ValueError(fmt::format("SyncBatchNorm takes input of [batch, channels, ...]; this has {} dimension{}",
                                 input.dim(), input.dim() == 1 ? "" : "s"));
  }
  if (input.size(1) == 0) throw ValueError("SyncBatchNorm: the input has no channels");
  if (channels >= 0 && input.size(1) != channels) {
    throw ValueError(fmt::format("SyncBatchNorm for {} channels got input of {}", channels, input.size(1)));
  }
}

at::Tensor batch_norm_over(const ProcessGroupPtr& group, const BatchNormArguments& arguments) {
  check_batch_norm_input(arguments.input, -1);
  const auto weight = if_defined(arguments.weight);
  const auto bias = if_defined(arguments.bias);
  if (group == nullptr || group->size() == 1 || !arguments.is_training) {
    return at::batch_norm(arguments.input, weight, bias, if_defined(arguments.running_mean),
                          if_defined(arguments.running_var), arguments.is_training, arguments.momentum, arguments.eps,
                          at::globalContext().userEnabledCuDNN());
  }
  return SyncBatchNormFunction::apply(arguments.input, weight, bias, arguments, group);
}

}  // namespace cohort

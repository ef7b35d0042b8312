// SPDX-License-Identifier: BSD-3-Clause
#include <ATen/ATen.h>
#include <cohort/error.h>
#include <cohort/torch/hooks.h>

#include <fmt/format.h>

#include <string>
#include <utility>
#include <vector>

#include "torch/hooks/hook_support.h"

namespace cohort::hooks {

namespace {

/// Rows of elements, each with its own affine map to 0..255: value = (code - zero) * scale.
struct Quantized {
  at::Tensor codes;  // u8 [rows, columns]
  at::Tensor maps;   // f32 [2, rows]: scales, zeros
};

Quantized quantize(const at::Tensor& rows) {
  // With 0 in the range, 0 has a code of its own, so padding and gradients that are exactly 0 stay 0.
  const auto low = at::amin(rows, 1).clamp_max(0);
  const auto high = at::amax(rows, 1).clamp_min(0);
  auto scale = (high - low).div_(255);
  scale = at::where(scale == 0, at::ones_like(scale), scale);
  const auto zero = at::round(-low / scale);
  auto codes = at::round(rows / scale.unsqueeze(1)).add_(zero.unsqueeze(1)).clamp_(0, 255);
  // NaN has no defined value as an integer; it comes back through the scale, which is not finite then.
  codes = at::nan_to_num(codes, 0.0).to(at::kByte);
  return {codes, at::stack({scale, zero})};
}

/// The mean over the ranks' quantised values. codes: [ranks, rows, columns], maps: [ranks, 2, rows].
at::Tensor mean_of(const at::Tensor& codes, const at::Tensor& maps) {
  auto sum = at::zeros({codes.size(1), codes.size(2)}, maps.options());
  for (std::int64_t rank = 0; rank < codes.size(0); ++rank) {
    const auto scale = maps[rank][0].unsqueeze(1);
    const auto zero = maps[rank][1].unsqueeze(1);
    sum.add_(codes[rank].to(at::kFloat).sub_(zero).mul_(scale));
  }
  return sum.div_(codes.size(0));
}

/// With `columns` 0 all elements are one row.
TensorFuture quantized_average(ProcessGroup& group, const at::Tensor& whole, std::int64_t columns,
                               const std::string& name) {
  if (is_sparse(whole)) return averaged(group, whole);
  expect_floats(whole, name);
  const auto count = whole.numel();
  if (count == 0) return completed_future(whole);
  auto values = whole.view(-1).to(at::kFloat);
  if (columns == 0) columns = count;
  if (const auto rest = count % columns; rest != 0) values = at::constant_pad_nd(values, {0, columns - rest});
  const auto mine = quantize(values.view({-1, columns}));
  // Both gathers are started before either is waited for.
  const auto all = collect_all<at::Tensor>({all_gather_async(group, mine.maps), all_gather_async(group, mine.codes)});
  return all.then([whole, count](const std::vector<at::Tensor>& parts) {
    const auto mean = mean_of(parts[1], parts[0]);
    whole.copy_(mean.view(-1).narrow(0, 0, count).view(whole.sizes()));
    return whole;
  });
}

CommHook quantize_by(std::int64_t columns, std::string name, ProcessGroupPtr given) {
  auto group = group_for(std::move(given), name);
  auto average = [group = std::move(group), columns, name](GradBucket& bucket) {
    return quantized_average(*group, bucket.buffer(), columns, name);
  };
  return NamedHook{std::move(name), std::move(average)};
}

}  // namespace

CommHook quantize_per_tensor(ProcessGroupPtr group) {
  return quantize_by(0, "quantize_per_tensor", std::move(group));
}

CommHook quantize_per_channel(ProcessGroupPtr group, std::int64_t bucket_size) {
  if (bucket_size < 1) {
    throw ValueError(fmt::format("quantize_per_channel: bucket_size is {}; it must be at least 1", bucket_size));
  }
  return quantize_by(bucket_size, "quantize_per_channel", std::move(group));
}

}  // namespace cohort::hooks

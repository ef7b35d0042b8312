// SPDX-License-Identifier: BSD-3-Clause
#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <cohort/backend.h>
#include <cohort/current_group.h>
#include <cohort/error.h>
#include <cohort/torch/capture_host.h>
#include <cohort/torch/tensor.h>
#include <cohort/torch/zero_optimizer.h>
#include <torch/serialize/archive.h>

#include <fmt/format.h>

#include <algorithm>
#include <deque>
#include <numeric>
#include <string>
#include <tuple>
#include <unordered_set>

#include "torch/compat/state_key.h"
#include "torch/flatten.h"
#include "torch/optim/optimizer_state.h"
#include "torch/optim/step_some.h"
#include "torch/state/crc64.h"
#include "torch/state/value_text.h"
#include "torch/written.h"

namespace cohort {

namespace {

using torch::optim::OptimizerParamGroup;
using torch::optim::OptimizerParamState;

/// Each parameter once, in order: libtorch lists a tied weight twice and would step it twice.
std::vector<OptimizerParamGroup> without_repeats(const std::vector<OptimizerParamGroup>& groups,
                                                 std::unordered_set<c10::TensorImpl*> seen = {}) {
  std::vector<OptimizerParamGroup> result(groups);
  for (auto& group : result) {
    std::erase_if(group.params(), [&](const at::Tensor& each) {
      if (!each.defined()) throw ValueError("ZeroOptimizer: an undefined parameter");
      return !seen.insert(each.unsafeGetTensorImpl()).second;
    });
  }
  return result;
}

std::string bytes_of(torch::serialize::OutputArchive& archive) {
  std::string bytes;
  archive.save_to([&](const void* data, std::size_t count) {
    bytes.append(static_cast<const char*>(data), count);
    return count;
  });
  return bytes;
}

/// Parameters of one owner, dtype and device that are sent together.
struct Parcel {
  int owner = 0;
  std::vector<at::Tensor> parameters{};
  std::size_t bytes = 0;

  at::Tensor memory{};
  bool in_place = false;
  Work work{};

  void send(ProcessGroup& group) {
    const bool mine = owner == group.rank();
    const auto& first = parameters.front();
    in_place = parameters.size() == 1 && first.is_non_overlapping_and_dense();
    if (in_place) {
      memory = first.detach();
    } else if (mine) {
      memory = flattened(parameters);
    } else {
      std::int64_t count = 0;
      for (const auto& each : parameters) count += each.numel();
      memory = at::empty({count}, first.options().requires_grad(false));
    }
    work = group.broadcast(buffer_of(memory), {.root = owner, .async_op = true, .stream = current_stream(memory)});
  }
  void receive(const ProcessGroup& group) {
    work.wait();
    if (owner != group.rank() && !in_place) copy_from_flat(memory, parameters);
  }
};

}  // namespace

ZeroOptimizerBase::ZeroOptimizerBase(Groups groups, std::unique_ptr<torch::optim::OptimizerOptions> defaults,
                                     MakeOptimizer make, MakeState make_state, ZeroOptions options)
    : Optimizer(without_repeats(groups), std::move(defaults)),
      make_(std::move(make)),
      make_state_(std::move(make_state)),
      group_(options.process_group != nullptr ? std::move(options.process_group)
                                              : require_current_process_group("ZeroOptimizer")),
      bucket_bytes_(options.bucket_bytes),
      loads_(static_cast<std::size_t>(group_->size()), 0) {
  if (bucket_bytes_ == 0) throw ValueError("ZeroOptimizer: bucket_bytes must be positive");
  check_ranks_agree();
  Groups shares;
  for (const auto& each : param_groups_) {
    deal_out(each);
    shares.push_back(share_of(each));
  }
  local_ = make_(std::move(shares));
}

void ZeroOptimizerBase::add_param_group(const OptimizerParamGroup& group) {
  std::unordered_set<c10::TensorImpl*> seen;
  for (const auto& [parameter, owner] : owners_) seen.insert(parameter);
  Optimizer::add_param_group(without_repeats({group}, std::move(seen)).front());
  check_ranks_agree();
  deal_out(param_groups_.back());
  local_->add_param_group(share_of(param_groups_.back()));
  whole_.reset();
}

void ZeroOptimizerBase::check_ranks_agree() const {
  Crc64 crc;
  const auto add = [&](std::int64_t number) { crc.add(&number, sizeof number); };
  for (const auto& each : param_groups_) {
    add(static_cast<std::int64_t>(each.params().size()));
    for (const auto& parameter : each.params()) {
      add(static_cast<std::int64_t>(parameter.scalar_type()));
      add(parameter.dim());
      for (const auto size : parameter.sizes()) add(size);
      for (const auto stride : parameter.strides()) add(stride);
    }
  }
  const auto all = group_->all_gather_bytes(std::to_string(crc.value()));
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    if (all[rank] == all[0]) continue;
    throw MismatchError(fmt::format("ZeroOptimizer: rank {} has other parameters than rank 0, in number, order, shape "
                                    "or type",
                                    rank),
                        {.group = group_->id(), .op = "zero_optimizer", .rank = static_cast<int>(rank)});
  }
}

void ZeroOptimizerBase::deal_out(const OptimizerParamGroup& group) {
  auto parameters = group.params();
  std::stable_sort(parameters.begin(), parameters.end(),
                   [](const at::Tensor& a, const at::Tensor& b) { return a.numel() > b.numel(); });
  for (const auto& parameter : parameters) {
    const auto least = std::min_element(loads_.begin(), loads_.end());
    owners_[parameter.unsafeGetTensorImpl()] = static_cast<int>(least - loads_.begin());
    *least += parameter.numel();
  }
}

int ZeroOptimizerBase::owner_of(const at::Tensor& parameter) const {
  const auto it = owners_.find(parameter.unsafeGetTensorImpl());
  if (it == owners_.end()) throw ValueError("ZeroOptimizer: a tensor that is none of its parameters");
  return it->second;
}

bool ZeroOptimizerBase::is_mine(const at::Tensor& parameter) const {
  return owner_of(parameter) == group_->rank();
}

OptimizerParamGroup ZeroOptimizerBase::share_of(const OptimizerParamGroup& group) const {
  OptimizerParamGroup share(group);
  std::erase_if(share.params(), [&](const at::Tensor& each) { return !is_mine(each); });
  return share;
}

std::vector<at::Tensor> ZeroOptimizerBase::all_parameters() const {
  std::vector<at::Tensor> all;
  for (const auto& each : param_groups_) all.insert(all.end(), each.params().begin(), each.params().end());
  return all;
}

/// Users and schedulers change the learning rate in our groups, not in those of the inner optimizer.
void ZeroOptimizerBase::copy_options() {
  for (std::size_t i = 0; i < param_groups_.size(); ++i) {
    local_->param_groups()[i].set_options(param_groups_[i].options().clone());
  }
}

at::Tensor ZeroOptimizerBase::step(LossClosure closure) {
  at::Tensor loss;
  if (closure) {
    const at::AutoGradMode enable(true);
    loss = closure();
  }
  on_host([this] {
    whole_.reset();
    copy_options();
  });
  local_->step();
  share_parameters(all_parameters());
  return loss;
}

void ZeroOptimizerBase::step_parameters(std::span<const at::Tensor> parameters) {
  on_host([this] {
    whole_.reset();  // also where nothing is stepped: other ranks step
    copy_options();
  });
  std::vector<at::Tensor> mine;
  for (const auto& each : parameters) {
    if (is_mine(each)) mine.push_back(each);
  }
  if (!mine.empty()) step_some(*local_, mine);
}

void ZeroOptimizerBase::share_over_own_group() {
  if (own_group_ != nullptr || group_->size() == 1) return;
  if (!group_->default_backend()->capabilities().splitting) return;
  std::vector<int> all(static_cast<std::size_t>(group_->size()));
  std::iota(all.begin(), all.end(), 0);
  own_group_ = group_->split_group(std::move(all), {.description = "parameters of a ZeroOptimizer"});
}

void ZeroOptimizerBase::share_parameters(std::span<const at::Tensor> parameters) {
  // Those that this rank has stepped too: libtorch's optimizers write through data(), which does not raise the version.
  for (const auto& each : parameters) mark_written(each);
  if (group_->size() == 1) return;
  const at::NoGradGuard no_grad;
  std::vector<Parcel> parcels;
  // For each owner, device and dtype the parcel that is not full yet.
  std::vector<std::pair<std::tuple<int, at::Device, at::ScalarType>, std::size_t>> open;
  for (const auto& each : parameters) {
    const auto bytes = each.nbytes();
    if (bytes == 0) continue;
    const std::tuple kind(owner_of(each), each.device(), each.scalar_type());
    const auto it = std::find_if(open.begin(), open.end(), [&](const auto& x) { return x.first == kind; });
    if (bytes < bucket_bytes_ && it != open.end() && parcels[it->second].bytes + bytes <= bucket_bytes_) {
      parcels[it->second].parameters.push_back(each);
      parcels[it->second].bytes += bytes;
      continue;
    }
    parcels.push_back({.owner = std::get<0>(kind), .parameters = {each}, .bytes = bytes});
    if (bytes >= bucket_bytes_) continue;
    if (it == open.end()) {
      open.emplace_back(kind, parcels.size() - 1);
    } else {
      it->second = parcels.size() - 1;
    }
  }
  // Two parcels are under way at a time: one is packed or unpacked while the other is sent, and the memory of two
  // parcels is enough.
  auto& group = *sharing_group();
  std::deque<Parcel> under_way;
  for (auto& parcel : parcels) {
    parcel.send(group);
    under_way.push_back(std::move(parcel));
    if (under_way.size() < 2) continue;
    under_way.front().receive(group);
    under_way.pop_front();
  }
  for (auto& parcel : under_way) parcel.receive(group);
}

void ZeroOptimizerBase::consolidate_state(int root) {
  if (root < 0 || root >= group_->size()) {
    throw ValueError(fmt::format("ZeroOptimizer: root {} of {} ranks", root, group_->size()));
  }
  const auto parameters = all_parameters();
  const auto name = [](std::size_t index) { return "p" + std::to_string(index); };

  torch::serialize::OutputArchive mine;
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const auto it = local_->state().find(state_key(parameters[i]));
    if (it == local_->state().end() || !is_mine(parameters[i])) continue;
    torch::serialize::OutputArchive state(mine.compilation_unit());
    it->second->serialize(state);
    mine.write(name(i), state);
  }
  const auto bytes = bytes_of(mine);

  std::unique_ptr<Optimizer> whole;
  if (group_->rank() == root) whole = make_(param_groups_);
  // One rank after another, so that only the root ever holds more than one share beside its own.
  for (int rank = 0; rank < group_->size(); ++rank) {
    const auto theirs = group_->broadcast_bytes(rank == group_->rank() ? bytes : std::string(), {.root = rank});
    if (whole == nullptr) continue;
    torch::serialize::InputArchive archive;
    archive.load_from(theirs.data(), theirs.size(), at::Device(at::kCPU));
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      torch::serialize::InputArchive from;
      if (!archive.try_read(name(i), from)) continue;
      auto state = make_state_();
      state->serialize(from);
      whole->state()[state_key(parameters[i])] = std::move(state);
    }
  }
  whole_ = std::move(whole);
}

void ZeroOptimizerBase::save(torch::serialize::OutputArchive& archive) const {
  if (whole_ == nullptr) {
    throw Error(
        "ZeroOptimizer: the state is spread over the ranks: all call consolidate_state(root) first, then the root "
        "saves, before the next step");
  }
  for (std::size_t i = 0; i < param_groups_.size(); ++i) {
    whole_->param_groups()[i].set_options(param_groups_[i].options().clone());
  }
  whole_->save(archive);
}

void ZeroOptimizerBase::load(torch::serialize::InputArchive& archive) {
  const auto whole = make_(param_groups_);
  whole->load(archive);
  local_->state().clear();
  whole_.reset();
  for (std::size_t i = 0; i < param_groups_.size(); ++i) {
    param_groups_[i].set_options(whole->param_groups()[i].options().clone());
  }
  for (const auto& parameter : all_parameters()) {
    const auto it = whole->state().find(state_key(parameter));
    if (it == whole->state().end() || !is_mine(parameter)) continue;
    auto state = std::move(it->second);
    if (!parameter.device().is_cpu()) {
      // The consolidated state is on the host.
      torch::serialize::OutputArchive out;
      state->serialize(out);
      const auto bytes = bytes_of(out);
      torch::serialize::InputArchive in;
      in.load_from(bytes.data(), bytes.size(), parameter.device());
      state = make_state_();
      state->serialize(in);
    }
    local_->state()[state_key(parameter)] = std::move(state);
  }
}

StateDict ZeroOptimizerBase::state_dict() const {
  if (whole_ == nullptr) {
    throw Error(
        "ZeroOptimizer: the state is spread over the ranks: all call consolidate_state(root) first, then the root "
        "calls state_dict, before the next step");
  }
  return optimizer_state_dict(*this, *whole_);
}

StateDict ZeroOptimizerBase::local_state_dict() const {
  return optimizer_state_dict(*this, *local_);
}

bool ZeroOptimizerBase::needs_state(const std::string& key) const {
  constexpr std::string_view prefix = "state.";
  if (!key.starts_with(prefix)) return true;
  const auto number =
      text_to_unsigned(std::string_view(key).substr(prefix.size(), key.find('.', prefix.size()) - prefix.size()));
  const auto parameters = all_parameters();
  return number.has_value() && *number < parameters.size() && is_mine(parameters[*number]);
}

void ZeroOptimizerBase::check_state_dict(const StateDict& state) const {
  check_optimizer_state(*this, state);
}

void ZeroOptimizerBase::load_state_dict(const StateDict& state) {
  LoadedOptimizerState(*this, state, [this](const at::Tensor& each) { return is_mine(each); }).install(*this, *local_);
  whole_.reset();
}

}  // namespace cohort

// SPDX-License-Identifier: BSD-3-Clause
#include <ATen/ATen.h>
#include <cohort/torch/checkpoint_error.h>
#include <cohort/torch/state_dict.h>

#include <fmt/format.h>

#include <optional>
#include <string_view>
#include <utility>

#include "torch/state/value_text.h"

namespace cohort {

namespace {

/// The key in messages; that of a single value is empty.
std::string shown(const std::string& key) {
  return key.empty() ? "the value" : fmt::format("'{}'", key);
}

const std::string& text_of(const std::map<std::string, std::string>& values, const std::string& key) {
  const auto it = values.find(key);
  if (it == values.end()) throw CheckpointError(fmt::format("{} is missing", shown(key)));
  return it->second;
}

template <class T>
T require_type(std::optional<T> value, const std::string& key, std::string_view type, const std::string& text) {
  if (value.has_value()) return *std::move(value);
  throw CheckpointError(
      fmt::format("{} is of another type in the checkpoint: {} is not {}", shown(key), printable(text), type));
}

[[noreturn]] void refuse_range(const std::string& key, const std::string& text) {
  throw CheckpointError(
      fmt::format("{} is {} in the checkpoint, which does not fit into its type", shown(key), printable(text)));
}

/// Calls `use(key without prefix, value)` for all of a map that lie under the prefix.
template <class Map, class F>
void each_under(const Map& map, const std::string& prefix, F&& use) {
  if (const auto it = map.find(prefix); it != map.end()) use(std::string(), it->second);
  const auto start = prefix + ".";
  for (auto it = map.lower_bound(start); it != map.end() && it->first.starts_with(start); ++it) {
    use(it->first.substr(start.size()), it->second);
  }
}

std::string joined_key(const std::string& prefix, const std::string& key) {
  if (prefix.empty()) return key;
  return key.empty() ? prefix : prefix + "." + key;
}

}  // namespace

void StateDict::set(const std::string& key, at::Tensor tensor) {
  if (!tensor.defined()) throw CheckpointError(fmt::format("{} is an undefined tensor", shown(key)));
  tensors_.insert_or_assign(key, std::move(tensor));
}
void StateDict::set_text(const std::string& key, std::string text) {
  values_.insert_or_assign(key, std::move(text));
}
void StateDict::set(const std::string& key, const std::string& text) {
  set_text(key, string_text(text));
}
void StateDict::set(const std::string& key, const std::vector<std::int64_t>& list) {
  set_text(key, list_text(list));
}
void StateDict::set_bool(const std::string& key, bool value) {
  set_text(key, bool_text(value));
}
void StateDict::set_integer(const std::string& key, std::int64_t value) {
  set_text(key, integer_text(value));
}
void StateDict::set_unsigned(const std::string& key, std::uint64_t value) {
  set_text(key, unsigned_text(value));
}
void StateDict::set_double(const std::string& key, double value) {
  set_text(key, double_text(value));
}

bool StateDict::has(const std::string& key) const {
  return tensors_.contains(key) || values_.contains(key);
}

at::Tensor StateDict::tensor(const std::string& key) const {
  const auto it = tensors_.find(key);
  if (it == tensors_.end()) throw CheckpointError(fmt::format("the tensor {} is missing", shown(key)));
  return it->second.detach().clone();
}

bool StateDict::get_bool(const std::string& key) const {
  const auto& text = text_of(values_, key);
  return require_type(text_to_bool(text), key, "true or false", text);
}
double StateDict::get_double(const std::string& key) const {
  const auto& text = text_of(values_, key);
  return require_type(text_to_double(text), key, "a floating-point number", text);
}
std::string StateDict::get_string(const std::string& key) const {
  const auto& text = text_of(values_, key);
  return require_type(text_to_string(text), key, "a string", text);
}
std::vector<std::int64_t> StateDict::get_list(const std::string& key) const {
  const auto& text = text_of(values_, key);
  return require_type(text_to_list(text), key, "a list of integers", text);
}
std::int64_t StateDict::get_integer(const std::string& key, std::int64_t least, std::int64_t most) const {
  const auto& text = text_of(values_, key);
  const auto value = require_type(text_to_integer(text), key, "an integer of 64 bits", text);
  if (value < least || value > most) refuse_range(key, text);
  return value;
}
std::uint64_t StateDict::get_unsigned(const std::string& key, std::uint64_t most) const {
  const auto& text = text_of(values_, key);
  const auto value = require_type(text_to_unsigned(text), key, "an unsigned integer of 64 bits", text);
  if (value > most) refuse_range(key, text);
  return value;
}

void StateDict::add(const std::string& prefix, const StateDict& state) {
  for (const auto& [key, tensor] : state.tensors_) tensors_.insert_or_assign(joined_key(prefix, key), tensor);
  for (const auto& [key, text] : state.values_) values_.insert_or_assign(joined_key(prefix, key), text);
}

StateDict StateDict::part(const std::string& prefix) const {
  StateDict result;
  each_under(tensors_, prefix,
             [&](std::string key, const at::Tensor& tensor) { result.tensors_.emplace(std::move(key), tensor); });
  each_under(values_, prefix,
             [&](std::string key, const std::string& text) { result.values_.emplace(std::move(key), text); });
  return result;
}

}  // namespace cohort

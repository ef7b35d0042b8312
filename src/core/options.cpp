// SPDX-License-Identifier: BSD-3-Clause
#include <cohort/error.h>
#include <cohort/options.h>

#include <fmt/format.h>

#include <array>
#include <limits>

#include "core/parse.h"

namespace cohort {

Options::Options() : map_(std::make_unique<Map>()) {}
Options::Options(std::initializer_list<std::pair<std::string, OptionValue>> entries) : Options() {
  for (const auto& [key, value] : entries) {
    if (!map_->emplace(key, value).second) throw KeyError(fmt::format("the option \"{}\" is given twice", key));
  }
}
Options::~Options() = default;
Options::Options(const Options& other) : map_(std::make_unique<Map>(*other.map_)) {}
// A moved-from Options is empty, not null: every member may be called on it.
Options::Options(Options&& other) noexcept : Options() {
  map_.swap(other.map_);
}
Options& Options::operator=(const Options& other) {
  Options copy(other);
  map_.swap(copy.map_);
  return *this;
}
Options& Options::operator=(Options&& other) noexcept {
  map_.swap(other.map_);
  return *this;
}

bool Options::empty() const noexcept {
  return map_->empty();
}
bool Options::contains(std::string_view key) const {
  return find(key) != nullptr;
}
const OptionValue* Options::find(std::string_view key) const {
  const auto it = map_->find(key);
  return it == map_->end() ? nullptr : &it->second;
}
void Options::set(std::string key, OptionValue value) {
  map_->insert_or_assign(std::move(key), std::move(value));
}
const Options::Map& Options::entries() const noexcept {
  return *map_;
}

Options Options::for_device(DeviceType type) const {
  for (const auto& [key, value] : *map_) {
    const bool is_device = key == "cpu" || key == "cuda";
    if (!is_device || !std::holds_alternative<Options>(value.variant())) {
      throw KeyError(
          fmt::format("the option \"{}\" stands outside a device: with one backend per device, options go "
                      "under \"cpu\" or \"cuda\", as in {{{{\"cuda\", {{{{\"{}\", ...}}}}}}}}",
                      key, key));
    }
  }
  const auto* const nested = find(to_string(type));
  return nested == nullptr ? Options() : std::get<Options>(nested->variant());
}

std::string_view OptionValue::type_name() const noexcept {
  static constexpr std::array<std::string_view, 8> names = {"boolean",  "integer",      "real",    "string",
                                                            "duration", "integer list", "options", "handle"};
  return names[value_.index()];
}

template <class T>
const T* OptionReader::lookup(std::string_view key, std::string_view wanted) {
  known_.emplace(key);
  const auto* const value = options_.find(key);
  if (value == nullptr) return nullptr;
  const auto* const typed = std::get_if<T>(&value->variant());
  if (typed == nullptr) {
    throw TypeError(fmt::format("{}: the option \"{}\" takes a value of type {}, not {}", reader_, key, wanted,
                                value->type_name()));
  }
  return typed;
}

bool OptionReader::get(std::string_view key, bool fallback) {
  const auto* const value = lookup<bool>(key, "boolean");
  return value == nullptr ? fallback : *value;
}
std::int64_t OptionReader::get(std::string_view key, std::int64_t fallback) {
  const auto* const value = lookup<std::int64_t>(key, "integer");
  return value == nullptr ? fallback : *value;
}
int OptionReader::get(std::string_view key, int fallback) {
  const auto wide = get(key, static_cast<std::int64_t>(fallback));
  if (wide < std::numeric_limits<int>::min() || wide > std::numeric_limits<int>::max()) {
    throw ValueError(fmt::format("{}: the option \"{}\" is out of range: {}", reader_, key, wide));
  }
  return static_cast<int>(wide);
}
double OptionReader::get(std::string_view key, double fallback) {
  const auto* const value = options_.find(key);
  if (value != nullptr && std::holds_alternative<std::int64_t>(value->variant())) {
    return static_cast<double>(get(key, std::int64_t{0}));
  }
  const auto* const real = lookup<double>(key, "real");
  return real == nullptr ? fallback : *real;
}
std::string OptionReader::get(std::string_view key, const std::string& fallback) {
  const auto* const value = lookup<std::string>(key, "string");
  return value == nullptr ? fallback : *value;
}
std::chrono::milliseconds OptionReader::get(std::string_view key, std::chrono::milliseconds fallback) {
  const auto* const value = lookup<std::chrono::milliseconds>(key, "duration");
  return value == nullptr ? fallback : *value;
}
std::vector<std::int64_t> OptionReader::get(std::string_view key, const std::vector<std::int64_t>& fallback) {
  const auto* const value = lookup<std::vector<std::int64_t>>(key, "integer list");
  return value == nullptr ? fallback : *value;
}
Options OptionReader::get(std::string_view key, const Options& fallback) {
  const auto* const value = lookup<Options>(key, "options");
  return value == nullptr ? fallback : *value;
}
OptionValue::Handle OptionReader::get_handle(std::string_view key) {
  const auto* const value = lookup<OptionValue::Handle>(key, "handle");
  return value == nullptr ? nullptr : *value;
}

void OptionReader::finish() const {
  for (const auto& [key, value] : options_.entries()) {
    if (known_.contains(key)) continue;
    if (known_.empty()) throw KeyError(fmt::format("{} takes no options, but got \"{}\"", reader_, key));
    const std::vector<std::string_view> candidates(known_.begin(), known_.end());
    const auto hint = did_you_mean(key, candidates);
    throw KeyError(fmt::format("{} does not know the option \"{}\"{}", reader_, key,
                               hint.empty() ? "" : fmt::format(": did you mean \"{}\"?", hint)));
  }
}

}  // namespace cohort

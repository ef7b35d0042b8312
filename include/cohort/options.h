// SPDX-License-Identifier: BSD-3-Clause
//
// Options map names to typed values. They hold settings that only one backend understands.
//
//   cohort::Options options{{"is_high_priority_stream", true}, {"timeout", 5s}, {"config", {{"min_ctas", 4}}}};
//
// Code that takes options reads them through an OptionReader, which refuses options that it was not asked for:
//
//   cohort::OptionReader read(options, "nccl");
//   bool high = read.get("is_high_priority_stream", false);
//   read.finish();     // KeyError: nccl does not know the option "is_high_prority_stream": did you mean ...?
//
// With one backend per device ("cpu:shm,cuda:nccl"), each backend's options are under the key of its device:
//
//   cohort::Options both{{"cuda", {{"is_high_priority_stream", true}}}};   // both.for_device(cohort::DeviceType::cuda)
#pragma once

#include <cohort/device.h>
#include <cohort/export.h>

#include <chrono>
#include <concepts>
#include <cstdint>
#include <initializer_list>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace cohort {

class OptionValue;

class COHORT_API Options {
 public:
  using Map = std::map<std::string, OptionValue, std::less<>>;

  Options();
  Options(std::initializer_list<std::pair<std::string, OptionValue>> entries);
  ~Options();
  Options(const Options&);
  Options(Options&&) noexcept;
  Options& operator=(const Options&);
  Options& operator=(Options&&) noexcept;

  bool empty() const noexcept;
  bool contains(std::string_view key) const;
  /// Null if there is no such key.
  const OptionValue* find(std::string_view key) const;
  void set(std::string key, OptionValue value);
  const Map& entries() const noexcept;

  /// The options under the device's key; empty if there are none. Throws KeyError if an entry at the top level is not a
  /// map under a device's key.
  Options for_device(DeviceType type) const;

 private:
  std::unique_ptr<Map> map_;
};

/// One value. Integers are stored as int64, floating-point numbers as double, and durations as milliseconds.
class COHORT_API OptionValue {
 public:
  using Handle = std::shared_ptr<void>;
  using Variant = std::variant<bool, std::int64_t, double, std::string, std::chrono::milliseconds,
                               std::vector<std::int64_t>, Options, Handle>;

  explicit(false) OptionValue(std::same_as<bool> auto v) : value_(v) {}
  explicit(false) OptionValue(std::integral auto v)
    requires(!std::same_as<decltype(v), bool>)
      : value_(static_cast<std::int64_t>(v)) {}
  explicit(false) OptionValue(std::floating_point auto v) : value_(static_cast<double>(v)) {}
  explicit(false) OptionValue(std::string v) : value_(std::move(v)) {}
  explicit(false) OptionValue(const char* v) : value_(std::string(v)) {}
  template <class Rep, class Period>
  explicit(false) OptionValue(std::chrono::duration<Rep, Period> v)
      : value_(std::chrono::duration_cast<std::chrono::milliseconds>(v)) {}
  explicit(false) OptionValue(std::vector<std::int64_t> v) : value_(std::move(v)) {}
  explicit(false) OptionValue(Options v) : value_(std::move(v)) {}
  explicit(false) OptionValue(std::initializer_list<std::pair<std::string, OptionValue>> v) : value_(Options(v)) {}
  /// An opaque handle for code that knows what it points to.
  template <class T>
  explicit(false) OptionValue(std::shared_ptr<T> v) : value_(Handle(std::move(v))) {}

  const Variant& variant() const noexcept { return value_; }
  /// "boolean", "integer", "real", "string", "duration", "integer list", "options", "handle"
  std::string_view type_name() const noexcept;

 private:
  Variant value_;
};

/// Reads options by name and type on behalf of `reader` (a backend's name), and refuses all others.
class COHORT_API OptionReader {
 public:
  OptionReader(const Options& options, std::string reader) : options_(options), reader_(std::move(reader)) {}

  /// The value under `key`, or `fallback` if there is none. Throws a TypeError that names both types if the value has
  /// another type. An integer is accepted as a real.
  bool get(std::string_view key, bool fallback);
  std::int64_t get(std::string_view key, std::int64_t fallback);
  int get(std::string_view key, int fallback);
  double get(std::string_view key, double fallback);
  std::string get(std::string_view key, const std::string& fallback);
  std::string get(std::string_view key, const char* fallback) { return get(key, std::string(fallback)); }
  std::chrono::milliseconds get(std::string_view key, std::chrono::milliseconds fallback);
  std::vector<std::int64_t> get(std::string_view key, const std::vector<std::int64_t>& fallback);
  Options get(std::string_view key, const Options& fallback);
  OptionValue::Handle get_handle(std::string_view key);

  /// Throws KeyError if there is a key that no get() asked for, and suggests the most similar one that was asked for.
  void finish() const;

 private:
  template <class T>
  const T* lookup(std::string_view key, std::string_view wanted);

  const Options& options_;
  std::string reader_;
  std::set<std::string, std::less<>> known_;
};

}  // namespace cohort

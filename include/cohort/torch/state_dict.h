// SPDX-License-Identifier: BSD-3-Clause
//
// The state of an object as named tensors and named values: what a checkpoint stores of it.
//
// An object of your own becomes part of a checkpoint by two members:
//
//   struct Progress {
//     cohort::StateDict state_dict() const {
//       cohort::StateDict state;
//       state.set("best_loss", best_loss);                     // numbers, strings, lists of integers
//       state.set("history", history);                         // tensors
//       return state;
//     }
//     void load_state_dict(const cohort::StateDict& state) {
//       best_loss = state.get<double>("best_loss");            // a CheckpointError if it is missing or not a double
//       history = state.tensor("history");
//     }
//     double best_loss = 0;
//     torch::Tensor history;
//   };
//
// Optionally `void check_state_dict(const cohort::StateDict&) const` throws if the state does not fit. A checkpoint
// calls it on all ranks before it changes anything.
//
// In a checkpoint that is a folder state_dict is called on all ranks. Rank 0's plain tensors and values are saved, and
// every rank's part of distributed tensors (dtensor.h); load_state_dict then gets these as whole tensors, of which
// distribute_tensor(whole, mesh, placements, {.src_data_rank = std::nullopt}) takes this rank's part.
//
// Keys are names with dots between their parts, as in "layer1.weight". Values keep their bits, apart from those of a
// NaN. Strings must be UTF-8.
#pragma once

#include <ATen/core/Tensor.h>
#include <cohort/export.h>

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <string>
#include <type_traits>
#include <vector>

namespace cohort {

class COHORT_API StateDict {
 public:
  /// The tensor is not copied: it is read when the checkpoint is written.
  void set(const std::string& key, at::Tensor tensor);
  void set(const std::string& key, const std::string& text);
  void set(const std::string& key, const std::vector<std::int64_t>& list);
  template <class T>
    requires std::is_arithmetic_v<T>
  void set(const std::string& key, T value) {
    if constexpr (std::same_as<T, bool>) {
      set_bool(key, value);
    } else if constexpr (std::floating_point<T>) {
      set_double(key, static_cast<double>(value));
    } else if constexpr (std::unsigned_integral<T>) {
      set_unsigned(key, value);
    } else {
      set_integer(key, value);
    }
  }

  /// Whether there is a tensor or a value of this name.
  bool has(const std::string& key) const;
  /// A copy of the tensor, on the host if it was loaded.
  at::Tensor tensor(const std::string& key) const;
  /// T: an arithmetic type, std::string or std::vector<std::int64_t>. A CheckpointError if there is no such value, if
  /// it is of another type, and for an integer that T cannot hold.
  template <class T>
  T get(const std::string& key) const {
    if constexpr (std::same_as<T, bool>) {
      return get_bool(key);
    } else if constexpr (std::same_as<T, std::string>) {
      return get_string(key);
    } else if constexpr (std::same_as<T, std::vector<std::int64_t>>) {
      return get_list(key);
    } else if constexpr (std::floating_point<T>) {
      return static_cast<T>(get_double(key));
    } else if constexpr (std::unsigned_integral<T>) {
      return static_cast<T>(get_unsigned(key, std::numeric_limits<T>::max()));
    } else {
      static_assert(std::integral<T>, "a number, a string, or a list of std::int64_t");
      return static_cast<T>(get_integer(key, std::numeric_limits<T>::min(), std::numeric_limits<T>::max()));
    }
  }

  /// Adds everything in `state`, with `prefix` and a dot in front of the keys. An empty key becomes the prefix itself,
  /// and with an empty prefix keys stay as they are.
  void add(const std::string& prefix, const StateDict& state);
  /// What add() put there.
  StateDict part(const std::string& prefix) const;

  bool empty() const { return tensors_.empty() && values_.empty(); }
  const std::map<std::string, at::Tensor>& tensors() const { return tensors_; }
  /// As they are written: JSON texts.
  const std::map<std::string, std::string>& values() const { return values_; }
  /// The text of a value, as values() gives it.
  void set_text(const std::string& key, std::string text);

 private:
  void set_bool(const std::string& key, bool value);
  void set_integer(const std::string& key, std::int64_t value);
  void set_unsigned(const std::string& key, std::uint64_t value);
  void set_double(const std::string& key, double value);
  bool get_bool(const std::string& key) const;
  std::int64_t get_integer(const std::string& key, std::int64_t least, std::int64_t most) const;
  std::uint64_t get_unsigned(const std::string& key, std::uint64_t most) const;
  double get_double(const std::string& key) const;
  std::string get_string(const std::string& key) const;
  std::vector<std::int64_t> get_list(const std::string& key) const;

  std::map<std::string, at::Tensor> tensors_;
  std::map<std::string, std::string> values_;
};

template <class T>
concept HasStateDict = requires(T& object, const T& constant, const StateDict& state) {
  { constant.state_dict() } -> std::convertible_to<StateDict>;
  object.load_state_dict(state);
};

}  // namespace cohort

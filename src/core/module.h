// SPDX-License-Identifier: BSD-3-Clause
//
// Shared objects found at run time: Cohort's own modules (one for each engine it was built with) and libraries of
// others (NCCL, the CUDA driver), so that one build serves machines that have them and machines that do not.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace cohort {

/// A module is never unloaded, because what it started (threads, exit handlers) cannot be undone.
class Module {
 public:
  /// Loads a module of Cohort by the name of its engine ("gloo" is libcohort_gloo.so). It is searched for in the
  /// folders of `path` (COHORT_MODULE_PATH, separated by colons), then where the loader would look for a library that
  /// this one needs, then where it was installed.
  ///
  /// `library` is what the engine is made of ("libgloo"), and `symbol` one of its symbols. A program may contain
  /// another version inside a library of its own, as PyTorch's libtorch does; the loader must not bind the engine to
  /// that one.
  static Module of_engine(std::string_view engine, std::string_view path, std::string_view library = {},
                          const char* symbol = nullptr);
  /// Loads the first of these libraries that the loader finds, preferring one that the process has loaded already.
  static Module of_system(std::span<const std::string> names);

  bool is_loaded() const noexcept { return handle_ != nullptr; }
  /// Why the module could not be loaded: the loader's message.
  const std::string& why_not() const noexcept { return why_not_; }

  /// Returns null if there is no such symbol.
  template <class Function>
  Function find(const char* symbol) const {
    return reinterpret_cast<Function>(address(symbol));
  }

 private:
  void* address(const char* symbol) const;
  void* handle_ = nullptr;
  std::string why_not_{};
};

}  // namespace cohort

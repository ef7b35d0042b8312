// SPDX-License-Identifier: BSD-3-Clause
//
// Shared objects found at run time: Cohort's own modules (one for each engine it was built with) and libraries of
// others (NCCL, the CUDA driver), so that one build serves machines that have them and machines that do not.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace cohort {

/// Once loaded it stays: what it started (threads, exit handlers) cannot be taken back.
class Module {
 public:
  /// One of ours, by the name of its engine ("gloo" is libcohort_gloo.so): looked for in the folders of `path`
  /// (COHORT_MODULE_PATH, separated by colons), then beside this library, then where it was installed.
  ///
  /// `library` and one `symbol` of it: what the engine is made of ("libgloo"). A program may hold another version of it
  /// inside a library of its own, as PyTorch's libtorch does, and the loader would bind the engine to that.
  static Module of_engine(std::string_view engine, std::string_view path, std::string_view library = {},
                          const char* symbol = nullptr);
  /// The first of these libraries that the loader finds; one that the process has loaded already comes first.
  static Module of_system(std::span<const std::string> names);

  bool is_loaded() const noexcept { return handle_ != nullptr; }
  /// Why it is not, in the loader's words.
  const std::string& why_not() const noexcept { return why_not_; }

  /// Null if it is not there.
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

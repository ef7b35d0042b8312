// SPDX-License-Identifier: BSD-3-Clause
#include "torch/capture/source_lines.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <mutex>
#include <string_view>
#include <unordered_map>

#ifdef COHORT_HAS_LIBBACKTRACE
#include <backtrace.h>
#endif

namespace cohort::recording {

#ifdef COHORT_HAS_LIBBACKTRACE

namespace {

void ignore_error(void* /*data*/, const char* /*message*/, int /*number*/) {}

/// Reads debug information once, when it is first asked, and keeps it: libbacktrace has no way to free it.
backtrace_state* debug_information() {
  static auto* const state = backtrace_create_state(nullptr, /*threaded=*/1, ignore_error, nullptr);
  return state;
}

/// Where this library's sources lay when it was built.
std::string_view own_sources() {
  constexpr std::string_view here = __FILE__;
  return here.substr(0, here.find("src/torch/capture/"));
}

bool is_of_a_library(std::string_view file) {
  // Compiler caches give objects the names of files in another folder, so the folders that calls pass are listed, too.
  constexpr std::array<std::string_view, 12> parts{
      "/include/torch/",      "/include/ATen/",      "/include/c10/",          "/include/c++/",
      "/include/cohort/",     "/usr/include/",       "/src/torch/capture/",    "/src/torch/ddp/",
      "/src/torch/dispatch/", "/src/torch/dtensor/", "/src/torch/functional/", "/src/torch/optim/"};
  const auto own = own_sources();
  if (!own.empty() && file.starts_with(own) && file.substr(own.size()).starts_with("src/")) return true;
  return std::any_of(parts.begin(), parts.end(),
                     [&](std::string_view each) { return file.find(each) != std::string_view::npos; });
}

/// Called for the functions that were inlined at an address, the innermost first.
int take_line(void* line, std::uintptr_t /*address*/, const char* file, int number, const char* /*function*/) {
  if (file == nullptr || number <= 0 || is_of_a_library(file)) return 0;
  *static_cast<std::string*>(line) = fmt::format("{}:{}", std::filesystem::path(file).filename().string(), number);
  return 1;
}

std::string line_of(std::uintptr_t address) {
  std::string line;
  backtrace_pcinfo(debug_information(), address, take_line, ignore_error, &line);
  return line;
}

}  // namespace

bool can_find_source_lines() noexcept {
  return true;
}

CallStack call_stack() {
  CallStack stack;
  const auto add = [](void* addresses, std::uintptr_t address) {
    static_cast<CallStack*>(addresses)->push_back(address);
    return 0;
  };
  backtrace_simple(debug_information(), 1, add, ignore_error, &stack);
  return stack;
}

std::string source_line(const CallStack& stack) {
  static std::mutex mutex;
  static std::unordered_map<std::uintptr_t, std::string> known;
  const std::lock_guard lock(mutex);
  for (const auto address : stack) {
    auto found = known.find(address);
    if (found == known.end()) found = known.emplace(address, line_of(address)).first;
    if (!found->second.empty()) return found->second;
  }
  return {};
}

#else

bool can_find_source_lines() noexcept {
  return false;
}

CallStack call_stack() {
  return {};
}

std::string source_line(const CallStack& /*stack*/) {
  return {};
}

#endif

}  // namespace cohort::recording

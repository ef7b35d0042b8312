// SPDX-License-Identifier: BSD-3-Clause
#include "core/module.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <vector>

#include "core/parse.h"

namespace cohort {

namespace {

/// dlerror() says it once, and the next call may be anybody's.
std::string loaders_words() {
  const char* const words = ::dlerror();  // NOLINT(concurrency-mt-unsafe): glibc's is per thread
  return words == nullptr ? "unknown error" : words;
}

}  // namespace

Module Module::of_engine(std::string_view engine, std::string_view path) {
  const auto file = fmt::format("libcohort_{}.so", engine);
  std::vector<std::string> candidates;
  if (!path.empty()) {
    for (const auto folder : split(path, ':')) candidates.push_back(fmt::format("{}/{}", folder, file));
  }
  candidates.push_back(file);  // by this object's RUNPATH, which the build and the installation set
  candidates.push_back(fmt::format("{}/{}", COHORT_MODULE_DIR, file));
  Module module;
  for (const auto& each : candidates) {
    // Local: an engine brings libraries of which the program may have others (libtorch carries a Gloo of its own).
    module.handle_ = ::dlopen(each.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (module.handle_ != nullptr) {
      module.why_not_.clear();
      return module;
    }
    module.why_not_ += (module.why_not_.empty() ? "" : "; ") + loaders_words();
  }
  return module;
}

Module Module::of_system(std::span<const std::string> names) {
  Module module;
  for (const int loaded_already : {RTLD_NOLOAD, 0}) {
    for (const auto& each : names) {
      module.handle_ = ::dlopen(each.c_str(), RTLD_NOW | RTLD_LOCAL | loaded_already);
      if (module.handle_ != nullptr) {
        module.why_not_.clear();
        return module;
      }
      if (loaded_already == 0) module.why_not_ += (module.why_not_.empty() ? "" : "; ") + loaders_words();
    }
  }
  return module;
}

void* Module::address(const char* symbol) const {
  return handle_ == nullptr ? nullptr : ::dlsym(handle_, symbol);
}

}  // namespace cohort

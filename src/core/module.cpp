// SPDX-License-Identifier: BSD-3-Clause
#include "core/module.h"

#include <dlfcn.h>
#include <fmt/format.h>
#include <link.h>
#include <unistd.h>

#include <cstddef>
#include <span>
#include <vector>

#include "core/parse.h"

namespace cohort {

namespace {

/// dlerror() returns a message only once, and any other call may replace it.
std::string loaders_words() {
  const char* const words = ::dlerror();  // NOLINT(concurrency-mt-unsafe): glibc's is per thread
  return words == nullptr ? "unknown error" : words;
}

/// Whether the whole program sees a `symbol` that does not come from `library`.
bool has_another(std::string_view library, const char* symbol) {
  if (symbol == nullptr) return false;
  void* const seen = ::dlsym(RTLD_DEFAULT, symbol);
  Dl_info where{};
  if (seen == nullptr || ::dladdr(seen, &where) == 0) return false;
  const std::string_view file = where.dli_fname == nullptr ? "" : where.dli_fname;
  return !file.substr(file.rfind('/') + 1).starts_with(library);
}

/// Where the loader would look for a library on behalf of this object: its RUNPATH, which the build and the
/// installation set, LD_LIBRARY_PATH and the system's folders. dlopen() itself looks there only if it is called from
/// here, and both sanitizers and UCX, which Debian's newer MPIs load, put a function of their own in between.
std::vector<std::string> search_path() {
  Dl_info own{};
  link_map* map = nullptr;
  if (::dladdr1(reinterpret_cast<const void*>(&search_path), &own, reinterpret_cast<void**>(&map), RTLD_DL_LINKMAP) ==
      0) {
    return {};
  }
  // The program itself has no name.
  void* const handle = ::dlopen(*map->l_name == '\0' ? nullptr : map->l_name, RTLD_LAZY | RTLD_NOLOAD);
  if (handle == nullptr) return {};
  std::vector<std::string> folders;
  Dl_serinfo size{};
  if (::dlinfo(handle, RTLD_DI_SERINFOSIZE, &size) == 0) {
    std::vector<std::max_align_t> memory(size.dls_size / sizeof(std::max_align_t) + 1);
    auto* const found = reinterpret_cast<Dl_serinfo*>(memory.data());
    *found = size;  // which it asks for
    if (::dlinfo(handle, RTLD_DI_SERINFO, found) == 0) {
      const std::span entries(found->dls_serpath, found->dls_cnt);
      for (const auto& each : entries) folders.emplace_back(each.dls_name);
    }
  }
  ::dlclose(handle);
  return folders;
}

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr int own_first = 0;  // with it, sanitizers would not see the calls
#else
constexpr int own_first = RTLD_DEEPBIND;
#endif

}  // namespace

Module Module::of_engine(std::string_view engine, std::string_view path, std::string_view library, const char* symbol) {
  const auto file = fmt::format("libcohort_{}.so", engine);
  std::vector<std::string> candidates;
  if (!path.empty()) {
    for (const auto folder : split(path, ':')) candidates.push_back(fmt::format("{}/{}", folder, file));
  }
  for (const auto& folder : search_path()) {
    if (auto name = fmt::format("{}/{}", folder, file); ::access(name.c_str(), F_OK) == 0) candidates.push_back(name);
  }
  candidates.push_back(fmt::format("{}/{}", COHORT_MODULE_DIR, file));
  Module module;
  // Only where necessary: a module that binds to itself first does not use an allocator that was preloaded.
  const int order = has_another(library, symbol) ? own_first : 0;
  for (const auto& each : candidates) {
    // Local, so that the symbols of an engine's libraries are visible to nobody else.
    module.handle_ = ::dlopen(each.c_str(), RTLD_NOW | RTLD_LOCAL | order);
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

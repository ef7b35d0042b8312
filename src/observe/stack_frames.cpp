// SPDX-License-Identifier: BSD-3-Clause
#include "observe/stack_frames.h"

#include <cxxabi.h>
#include <dlfcn.h>
#include <execinfo.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <memory>

namespace cohort::observe {

CallStack callers() noexcept {
  constexpr std::size_t own = 2;  // this function and the recorder
  std::array<void*, kept_frames + own> all{};
  const auto found = static_cast<std::size_t>(std::max(0, ::backtrace(all.data(), static_cast<int>(all.size()))));
  CallStack stack;
  stack.count = found > own ? found - own : 0;
  std::copy_n(all.begin() + own, stack.count, stack.addresses.begin());
  return stack;
}

Frame describe_frame(const void* address) {
  // The return address of a call that does not return may belong to the next function, but the call instruction does
  // not.
  const auto* const inside = static_cast<const char*>(address) - 1;
  Dl_info found{};
  if (::dladdr(inside, &found) == 0) return {{}, fmt::format("{}", address)};
  Frame frame;
  const auto offset = static_cast<std::size_t>(inside - static_cast<const char*>(found.dli_fbase));
  frame.file = fmt::format("{}+{:#x}", found.dli_fname, offset);
  if (found.dli_sname != nullptr) {
    int status = 0;
    const std::unique_ptr<char, decltype(&std::free)> plain(
        abi::__cxa_demangle(found.dli_sname, nullptr, nullptr, &status), &std::free);
    frame.function = status == 0 ? plain.get() : found.dli_sname;
  }
  return frame;
}

}  // namespace cohort::observe

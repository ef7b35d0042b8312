// SPDX-License-Identifier: BSD-3-Clause
//
// What saving and loading a checkpoint share: errors that say what they are about, and ranks that fail together.
#pragma once

#include <c10/util/Exception.h>
#include <cohort/error.h>
#include <cohort/process_group.h>
#include <cohort/torch/checkpoint_error.h>

#include <fmt/format.h>

#include <exception>
#include <functional>
#include <string>

namespace cohort {

/// Runs `body` for one of the objects. Whatever it throws becomes a CheckpointError that names file and object; that of
/// libtorch without its stack trace, which does not help users.
template <class F>
auto checkpoint_step(const std::string& path, const std::string& name, F&& body) {
  const auto refuse = [&](const std::string& why) -> CheckpointError {
    return CheckpointError(fmt::format("{}: '{}': {}", path, name, why));
  };
  try {
    return body();
  } catch (const c10::Error& e) {
    throw refuse(e.what_without_backtrace());
  } catch (const Error& e) {
    throw refuse(e.message());
  } catch (const std::exception& e) {
    throw refuse(e.what());
  }
}

/// The same for what concerns the file as a whole.
template <class F>
auto file_step(const std::string& path, F&& body) {
  try {
    return body();
  } catch (const c10::Error& e) {
    throw CheckpointError(fmt::format("{}: {}", path, e.what_without_backtrace()));
  } catch (const CheckpointError& e) {
    if (e.message().starts_with(path)) throw;
    throw CheckpointError(fmt::format("{}: {}", path, e.message()));
  } catch (const std::exception& e) {
    throw CheckpointError(fmt::format("{}: {}", path, e.what()));
  }
}

/// Throws on all ranks if it throws on one.
inline void agree(ProcessGroup* group, Timeout timeout, const std::function<void()>& body) {
  if (group == nullptr) return body();
  try {
    group->all_ok(body, timeout);
  } catch (const DistributedError& e) {
    if (e.kind() != ErrorKind::distributed) throw;  // a lost peer stays a lost peer
    throw CheckpointError(e.message(), e.context());
  }
}

inline int rank_of(const ProcessGroup* group) {
  return group == nullptr ? 0 : group->rank();
}
inline int size_of(const ProcessGroup* group) {
  return group == nullptr ? 1 : group->size();
}

}  // namespace cohort

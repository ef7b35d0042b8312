// SPDX-License-Identifier: BSD-3-Clause
#include <cohort/memory.h>
#include <cohort/process_group.h>

#include <map>
#include <mutex>
#include <utility>

#include "core/immortal.h"

namespace cohort::detail {

namespace {

/// Process-wide and thread-safe: the owners of the memory that allocators handed out, by address.
struct Handles {
  std::mutex mutex;
  std::map<void*, GroupMemory> by_address;

  static Handles& instance() {
    static Immortal<Handles> handles;
    return *handles;
  }
};

}  // namespace

void* allocate_group_memory(ProcessGroup& group, std::size_t bytes) {
  auto memory = group.allocate(bytes);
  auto* const data = memory.data();
  auto& handles = Handles::instance();
  const std::lock_guard lock(handles.mutex);
  handles.by_address.emplace(data, std::move(memory));
  return data;
}

void free_group_memory(void* data) noexcept {
  GroupMemory memory;  // freed after the lock is released
  auto& handles = Handles::instance();
  const std::lock_guard lock(handles.mutex);
  const auto it = handles.by_address.find(data);
  if (it == handles.by_address.end()) return;
  memory = std::move(it->second);
  handles.by_address.erase(it);
}

}  // namespace cohort::detail

// SPDX-License-Identifier: BSD-3-Clause
#include "torch/functional/work_registry.h"

#include <cohort/log.h>
#include <cohort/torch/tensor.h>

#include <fmt/format.h>

#include <cstddef>
#include <cstdlib>
#include <exception>
#include <utility>

#include "core/immortal.h"

namespace cohort::functional {

namespace {

const c10::StorageImpl* storage_of(const at::Tensor& tensor) {
  return tensor.has_storage() ? tensor.storage().unsafeGetStorageImpl() : nullptr;
}

}  // namespace

WorkRegistry& WorkRegistry::instance() {
  static Immortal<WorkRegistry> registry;
  static const int registered = std::atexit([] {
    if (const auto count = registry->size(); count > 0) {
      log(LogLevel::warn, fmt::format("{} functional collective(s) were never waited for: call wait_tensor() on the "
                                      "result of each operator, on every path",
                                      count));
    }
  });
  static_cast<void>(registered);
  return *registry;
}

void WorkRegistry::add(const at::Tensor& tensor, const Work& work) {
  const std::lock_guard lock(mutex_);
  auto& entry = entries_[storage_of(tensor)];
  entry.storage = tensor.storage();
  entry.works.push_back(work);
}

void WorkRegistry::add(const Buffer& output, const Work& work) {
  if (output.bytes() == 0) return;
  const auto* const begin = static_cast<const std::byte*>(output.data());
  const std::lock_guard lock(mutex_);
  remove_ended();
  issued_.push_back({begin, begin + output.bytes(), work});
}

void WorkRegistry::remove_ended() {
  std::erase_if(issued_, [](const Issued& each) { return each.work.is_success(); });
}

WorkRegistry::Entry WorkRegistry::take(const at::Tensor& tensor) {
  Entry taken;
  const std::lock_guard lock(mutex_);
  if (const auto found = entries_.find(storage_of(tensor)); found != entries_.end()) {
    taken = std::move(found->second);
    entries_.erase(found);
  }
  if (!issued_.empty()) {
    const auto& storage = tensor.storage();
    const auto* const begin = static_cast<const std::byte*>(storage.data());
    const auto* const end = begin + storage.nbytes();
    std::erase_if(issued_, [&](const Issued& each) {
      const bool is_of_tensor = each.begin < end && begin < each.end;
      if (is_of_tensor) taken.works.push_back(each.work);
      return is_of_tensor;
    });
  }
  return taken;
}

void WorkRegistry::wait(const at::Tensor& tensor) {
  const auto entry = take(tensor);
  if (entry.works.empty()) return;
  auto* const stream = current_stream(tensor);
  std::exception_ptr first_error;
  for (const auto& work : entry.works) {
    try {
      work.wait_on(stream);
    } catch (...) {
      if (!first_error) first_error = std::current_exception();
    }
  }
  if (first_error) std::rethrow_exception(first_error);
}

void WorkRegistry::forget(const at::Tensor& tensor) {
  take(tensor);
}

std::vector<Work> WorkRegistry::works_of(const at::Tensor& tensor) const {
  const std::lock_guard lock(mutex_);
  const auto found = entries_.find(storage_of(tensor));
  return found == entries_.end() ? std::vector<Work>() : found->second.works;
}

std::size_t WorkRegistry::size() {
  const std::lock_guard lock(mutex_);
  remove_ended();
  auto count = issued_.size();
  for (const auto& [storage, entry] : entries_) count += entry.works.size();
  return count;
}

}  // namespace cohort::functional

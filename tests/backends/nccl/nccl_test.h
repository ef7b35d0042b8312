// SPDX-License-Identifier: BSD-3-Clause
//
// Groups on the test double of a GPU.
#pragma once

#include <cohort/backend.h>
#include <cohort/hash_store.h>
#include <cohort/new_group.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "backends/nccl/factory.h"
#include "backends/nccl/fake_gpu.h"
#include "support/expect_error.h"
#include "support/groups.h"
#include "support/ranks.h"

namespace cohort::test {

class NcclTest : public ::testing::Test {
 protected:
  FakeGpu gpu;

  static void SetUpTestSuite() {
    static const bool once = [] {
      register_backend("fake-nccl", [](const StorePtr& store, int rank, int size, std::chrono::milliseconds timeout,
                                       const Device& device, const Options& options) {
        return nccl::make_group(FakeGpu::instance().engine(), store, rank, size, timeout, device, options);
      });
      return true;
    }();
    static_cast<void>(once);
  }

  static ProcessGroupPtr make(const StorePtr& store, int rank, int size, const Options& options = {},
                              std::chrono::milliseconds timeout = patient) {
    return new_group("fake-nccl", timeout, "cuda:0", options, {.store = store, .rank = rank, .size = size});
  }
  static ProcessGroupPtr alone(const Options& options = {}, std::chrono::milliseconds timeout = patient) {
    return make(std::make_shared<HashStore>(), 0, 1, options, timeout);
  }
  static void with_ranks(int size, const GroupBody& body, std::chrono::milliseconds timeout = patient) {
    const auto store = std::make_shared<HashStore>();
    as_threads(size, [&](int rank) { body(make(store, rank, size, {}, timeout)); });
  }
};

/// Device memory of the test double, with a handle that keeps it alive.
template <class T>
class OnDevice {
 public:
  explicit OnDevice(std::vector<T> values) : memory_(std::make_shared<std::vector<T>>(std::move(values))) {}
  Buffer buffer() const {
    return {memory_->data(), dtype_of<T>, {static_cast<std::int64_t>(memory_->size())}, {}, "cuda:0", memory_};
  }
  /// A buffer that does not keep the memory alive.
  Buffer borrowed() const {
    return {memory_->data(), dtype_of<T>, {static_cast<std::int64_t>(memory_->size())}, {}, "cuda:0"};
  }
  std::vector<T>& values() const { return *memory_; }
  std::weak_ptr<std::vector<T>> weak() const { return memory_; }

 private:
  std::shared_ptr<std::vector<T>> memory_;
};

}  // namespace cohort::test

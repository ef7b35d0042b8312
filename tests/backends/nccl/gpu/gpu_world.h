// SPDX-License-Identifier: BSD-3-Clause
//
// Processes on one GPU, each of which NCCL takes for a host of its own; otherwise NCCL refuses several ranks on one
// device. The test's own process never uses CUDA, which does not survive a fork.
#pragma once

#include <cohort/error.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <chrono>
#include <cstdio>
#include <string>

#include "backends/nccl/factory.h"
#include "backends/nccl/gpu/device_memory.h"
#include "support/groups.h"
#include "support/ranks.h"
#include "support/store_host.h"

namespace cohort::test {

/// Whether there is a GPU to run on; prints the reason once if not.
inline bool has_gpu() {
  static const bool has = [] {
    const auto look = [] {
      auto missing = nccl::missing();
      try {
        if (missing.empty()) cuda::start(cuda::system_driver().driver);
      } catch (const ValueError& e) {
        missing = e.what();
      }
      if (!missing.empty()) std::fprintf(stderr, "GPU tests are skipped: %s\n", missing.c_str());
      return missing.empty() ? 0 : 1;
    };
    return Process(look).wait() == 0;
  }();
  return has;
}

class OnTheGpu : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!has_gpu()) GTEST_SKIP() << "no GPU";
  }
};

struct GpuRanks {
  std::string backend = "nccl";
  int size = 1;

  friend void PrintTo(const GpuRanks& ranks, std::ostream* out) { *out << ranks.backend << ranks.size; }
};

class OnTheGpuOfSize : public ::testing::TestWithParam<GpuRanks> {
 protected:
  void SetUp() override {
    if (!has_gpu()) GTEST_SKIP() << "no GPU";
  }
};

using WorldBody = std::function<void(int rank, const StorePtr& store)>;

/// The store outlives the ranks.
inline void on_one_gpu(int size, const WorldBody& body) {
  const StoreHost host;
  as_processes(size, [&](int rank) {
    ::setenv("NCCL_HOSTID", ("cohort-test-" + std::to_string(rank)).c_str(), 1);
    ::setenv("NCCL_SOCKET_IFNAME", "lo", 1);
    ::setenv("NCCL_IB_DISABLE", "1", 1);
    body(rank, std::make_shared<TcpStore>(TcpStoreOptions{.endpoint = host.endpoint(), .timeout = patient}));
    return 0;
  });
}

inline ProcessGroupPtr join_gpu(const StorePtr& store, int rank, int size, std::chrono::milliseconds timeout = patient,
                                const Options& options = {}, const std::string& backend = "nccl") {
  return new_group(backend, timeout, "cuda:0", options, {.store = store, .rank = rank, .size = size});
}

inline void with_gpu_group(const GpuRanks& ranks, const GroupBody& body) {
  on_one_gpu(ranks.size, [&](int rank, const StorePtr& store) {
    const auto group = join_gpu(store, rank, ranks.size, patient, {}, ranks.backend);
    body(group);
    group->barrier();
    group->shutdown();
  });
}

}  // namespace cohort::test

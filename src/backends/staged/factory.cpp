// SPDX-License-Identifier: BSD-3-Clause
#include "backends/staged/factory.h"

#include <cohort/error.h>

#include <fmt/format.h>

#include "backends/staged/backend.h"

namespace cohort::staged {

BackendPtr make_backend(ProcessGroupPtr host, const Device& device) {
  const auto& system = cuda::system_driver();
  if (!system.missing.empty()) {
    throw ValueError(fmt::format("backend {} for {}: {}", host->name(), to_string(device), system.missing));
  }
  cuda::start(system.driver);
  const auto index = device.index >= 0 ? device.index : cuda::Context::current_device(system.driver);
  return std::make_shared<StagedBackend>(std::move(host), std::make_shared<const cuda::Context>(system.driver, index));
}

}  // namespace cohort::staged

// SPDX-License-Identifier: BSD-3-Clause
//
// PyTorch's TCPStore and its gloo process group behind interfaces of our own: PyTorch's headers and ours never share a
// translation unit.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

namespace cohort::benchmarks {

class TorchStore {
 public:
  virtual ~TorchStore() = default;
  virtual std::uint16_t port() const = 0;
  virtual void set(const std::string& key, const std::string& value) = 0;
  /// Returns the size of the value: its bytes are not copied another time.
  virtual std::size_t get(const std::string& key) = 0;
  virtual std::int64_t add(const std::string& key, std::int64_t amount) = 0;
  virtual void wait(const std::string& key) = 0;
};

class TorchGroup {
 public:
  virtual ~TorchGroup() = default;
  /// Makes the device, which starts a thread and belongs to every first group, and the group on it.
  virtual void make(int rank, int size) = 0;
};

/// Empty where this program was built without PyTorch, or the group without gloo's headers.
extern const std::string torch_version;
extern const bool has_torch_group;

/// Port 0: chosen by the kernel. A host also has a connection to itself. Nullptr without PyTorch.
std::unique_ptr<TorchStore> make_torch_store(const std::string& host, std::uint16_t port, bool is_host);
/// Connected to a TorchStore; the group is not made yet. Nullptr without PyTorch's gloo.
std::unique_ptr<TorchGroup> make_torch_group(const std::string& host, std::uint16_t store_port);

}  // namespace cohort::benchmarks

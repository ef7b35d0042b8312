// SPDX-License-Identifier: BSD-3-Clause
//
// PyTorch's TCPStore behind an interface of our own: PyTorch's headers and ours never share a translation unit.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

namespace cohort::bench {

class TorchStore {
 public:
  /// Whether this program was built with PyTorch; without it every other function throws.
  static bool is_available();
  static std::string version();

  /// Port 0: chosen by the kernel. A host also has a connection to itself.
  TorchStore(const std::string& host, std::uint16_t port, bool is_host);
  ~TorchStore();
  TorchStore(const TorchStore&) = delete;
  TorchStore& operator=(const TorchStore&) = delete;

  std::uint16_t port() const;
  void set(const std::string& key, const std::string& value);
  /// Returns the size of the value: its bytes are not copied another time.
  std::size_t get(const std::string& key);
  std::int64_t add(const std::string& key, std::int64_t amount);
  void wait(const std::string& key);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace cohort::bench

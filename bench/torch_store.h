// SPDX-License-Identifier: BSD-3-Clause
//
// PyTorch's TCPStore behind names of our own: its headers and ours never meet in one translation unit.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

namespace cohort::bench {

class TorchStore {
 public:
  /// Whether this program was built with PyTorch; without it the rest throws.
  static bool is_available();
  static std::string version();

  /// Port 0: chosen by the kernel. A host also has a connection to itself.
  TorchStore(const std::string& host, std::uint16_t port, bool is_host);
  ~TorchStore();
  TorchStore(const TorchStore&) = delete;
  TorchStore& operator=(const TorchStore&) = delete;

  std::uint16_t port() const;
  void set(const std::string& key, const std::string& value);
  /// The size of the value: bytes are not copied a second time for our sake.
  std::size_t get(const std::string& key);
  std::int64_t add(const std::string& key, std::int64_t amount);
  void wait(const std::string& key);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace cohort::bench

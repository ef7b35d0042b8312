// SPDX-License-Identifier: BSD-3-Clause
//
// One of each kind of store, for tests that must hold on all of them.
#pragma once

#include <cohort/file_store.h>
#include <cohort/hash_store.h>
#include <cohort/prefix_store.h>
#include <cohort/tcp_store.h>
#include <unistd.h>

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "support/temporary.h"

namespace cohort::test {

/// An abstract socket name that no other test uses.
inline Endpoint unique_unix_endpoint() {
  static std::atomic<int> next{0};
  return Endpoint::unix_socket("@cohort-test/" + std::to_string(::getpid()) + "/" + std::to_string(next++));
}

inline TcpStoreOptions loopback_host() {
  return {.endpoint = Endpoint::tcp("127.0.0.1", 0), .is_host = true, .timeout = std::chrono::seconds(20)};
}

inline TcpStoreOptions client_of(const TcpStore& host) {
  return {.endpoint = host.endpoint(), .timeout = std::chrono::seconds(20)};
}

/// A kind of store: how to make the first handle, and how another process or thread opens the same data.
class StoreKind {
 public:
  virtual ~StoreKind() = default;
  virtual StorePtr open() = 0;
};

class HashKind : public StoreKind {
 public:
  StorePtr open() override { return store_; }

 private:
  std::shared_ptr<HashStore> store_ = std::make_shared<HashStore>();
};

class FileKind : public StoreKind {
 public:
  StorePtr open() override { return std::make_shared<FileStore>(folder_ / "store"); }

 private:
  TemporaryFolder folder_;
};

class TcpKind : public StoreKind {
 public:
  explicit TcpKind(TcpStoreOptions options = loopback_host())
      : options_(std::move(options)), host_(std::make_shared<TcpStore>(options_)) {}
  StorePtr open() override {
    auto options = options_;
    options.is_host = false;
    options.endpoint = host_->endpoint();
    return std::make_shared<TcpStore>(options);
  }

 private:
  TcpStoreOptions options_;
  std::shared_ptr<TcpStore> host_;
};

class UnixKind : public TcpKind {
 public:
  UnixKind() : TcpKind({.endpoint = unique_unix_endpoint(), .is_host = true, .timeout = std::chrono::seconds(20)}) {}
};

class SecretKind : public TcpKind {
 public:
  SecretKind()
      : TcpKind({.endpoint = Endpoint::tcp("::1", 0),
                 .is_host = true,
                 .timeout = std::chrono::seconds(20),
                 .secret = Secret::generate()}) {}
};

class PrefixKind : public StoreKind {
 public:
  StorePtr open() override {
    return std::make_shared<PrefixStore>("outer", std::make_shared<PrefixStore>("inner", inner_.open()));
  }

 private:
  TcpKind inner_;
};

}  // namespace cohort::test

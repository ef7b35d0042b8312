// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cohort/endpoint.h>
#include <cohort/secret.h>
#include <cohort/tcp_store.h>

#include <chrono>
#include <memory>

namespace cohort::bench {

/// The store of ranks that are forked from the process that makes this object. Rank 0 hosts it, on an abstract unix
/// socket whose name nobody else can guess.
class ForkedStore {
 public:
  StorePtr open(int rank, std::chrono::milliseconds timeout) const {
    return std::make_shared<TcpStore>(TcpStoreOptions{
        .endpoint = endpoint_, .is_host = rank == 0, .rank = rank, .timeout = timeout, .secret = secret_});
  }

 private:
  Secret secret_ = Secret::generate();
  Endpoint endpoint_ = Endpoint::unix_socket("@cohort/bench/" + Secret::generate().hex().substr(0, 32));
};

}  // namespace cohort::bench

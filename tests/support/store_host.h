// SPDX-License-Identifier: BSD-3-Clause
//
// A store in a process of its own, for tests whose ranks are forked and may be killed. It is not a thread of the test:
// a child that is forked while such a thread holds a lock, OpenSSL's for example, waits for that lock for ever.
#pragma once

#include <cohort/tcp_store.h>
#include <unistd.h>

#include <chrono>

#include "support/ranks.h"
#include "support/stores.h"

namespace cohort::test {

class StoreHost {
 public:
  StoreHost()
      : endpoint_(unique_unix_endpoint()), host_([this]() -> int {
          const TcpStore store({.endpoint = endpoint_, .is_host = true, .timeout = std::chrono::seconds(30)});
          for (;;) ::pause();
        }) {}
  const Endpoint& endpoint() const { return endpoint_; }

 private:
  Endpoint endpoint_;
  Process host_;
};

}  // namespace cohort::test

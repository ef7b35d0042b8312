// SPDX-License-Identifier: BSD-3-Clause
//
// A server whose memory runs out: the connection that needed it ends, and no other, and never the process. The n-th
// allocation of the server's thread fails, for each n in turn.
#include <cohort/error.h>
#include <cohort/tcp_store.h>
#include <gtest/gtest.h>
#include <pthread.h>

#include <array>
#include <atomic>
#include <cstdlib>
#include <new>
#include <optional>
#include <string_view>
#include <thread>

#include "support/certificates.h"
#include "support/temporary.h"

namespace {

/// Below 0: not armed. Otherwise so many allocations of the server's thread succeed, and the next `failures` fail.
std::atomic<int> successes_left{-1};
std::atomic<int> failures_left{0};

bool is_to_fail() {
  if (successes_left.load(std::memory_order_relaxed) < 0) return false;
  std::array<char, 16> name{};
  if (::pthread_getname_np(::pthread_self(), name.data(), name.size()) != 0) return false;
  if (std::string_view(name.data()) != "cohort-store") return false;
  if (successes_left.load() > 0) {
    --successes_left;
    return false;
  }
  return failures_left.load() > 0 && failures_left-- > 0;
}

}  // namespace

void* operator new(std::size_t size) {
  if (is_to_fail()) throw std::bad_alloc();
  if (void* const memory = std::malloc(size == 0 ? 1 : size)) return memory;
  throw std::bad_alloc();
}
void operator delete(void* memory) noexcept {
  std::free(memory);
}
void operator delete(void* memory, std::size_t /*size*/) noexcept {
  std::free(memory);
}

namespace cohort::test {
namespace {

using namespace std::chrono_literals;

/// What a job does with its store, in short. Errors of the store are answers here.
void use(const TcpStoreOptions& options) {
  try {
    TcpStore waiter(options);
    std::thread waiting([&waiter] {
      try {
        waiter.get("go");
        waiter.wait({"go", "further"});
      } catch (const Error&) {  // NOLINT(bugprone-empty-catch): its connection was the one
      }
    });
    try {
      TcpStore store(options);
      store.set("go", std::string(100'000, 'g'));
      store.set("further", "");
      store.queue_push("q", std::string(100, 'q'));
      store.queue_pop("q");
      store.append("go", "more");
      EXPECT_EQ(store.add("n", 1), 1);
    } catch (const Error&) {  // NOLINT(bugprone-empty-catch): its connection was the one
    }
    // The waiter is owed an answer, or its connection's end, by now; but if the one that should have set its keys did
    // not come to it, they are still to be set. Keys that are there are not set again: that would hide a lost wake-up.
    successes_left = -1;
    TcpStore rescue(options);
    for (const auto* const key : {"go", "further"}) {
      if (!rescue.check({key})) rescue.set(key, "");
    }
    waiting.join();
  } catch (const Error&) {  // NOLINT(bugprone-empty-catch): it could not connect
  }
}

struct Case {
  int failures = 1;  ///< in a row
  bool has_tls = false;
};

class OutOfMemory : public ::testing::TestWithParam<Case> {
 protected:
  std::optional<TlsOptions> tls() {
    if (!GetParam().has_tls) return std::nullopt;
    const auto authority = make_identity("authority", "", nullptr);
    write_pem(authority, folder / "ca.pem", folder / "ca.key");
    write_pem(make_identity("host", "IP:127.0.0.1", &authority), folder / "host.pem", folder / "host.key");
    return TlsOptions{.ca_file = folder / "ca.pem", .cert_file = folder / "host.pem", .key_file = folder / "host.key"};
  }

  TemporaryFolder folder;
};

TEST_P(OutOfMemory, EndsAConnectionAndNotTheServer) {
  const auto failures = GetParam().failures;
  const auto certificates = tls();
  int n = 0;
  bool has_failed = true;
  for (; has_failed; ++n) {
    StoreServer server({.endpoint = Endpoint::tcp("127.0.0.1", 0), .tls = certificates});
    const TcpStoreOptions options{.endpoint = server.endpoint(), .timeout = 5s, .tls = certificates};
    failures_left = failures;
    successes_left = n;
    const auto start = std::chrono::steady_clock::now();
    use(options);
    const auto took = std::chrono::steady_clock::now() - start;
    has_failed = failures_left < failures;
    successes_left = -1;
    EXPECT_LT(took, 4s) << "nobody waits for a deadline (allocation " << n << ")";
    TcpStore survivor(options);
    survivor.set("after", "value");
    EXPECT_EQ(survivor.get("after"), "value") << "allocation " << n;
    ASSERT_LT(n, 1000) << "the exchange always fails";
  }
  EXPECT_GT(n, 10) << "failures were not injected";
}

INSTANTIATE_TEST_SUITE_P(Failures, OutOfMemory, ::testing::Values(Case{1}, Case{3}, Case{1, true}, Case{3, true}));

}  // namespace
}  // namespace cohort::test

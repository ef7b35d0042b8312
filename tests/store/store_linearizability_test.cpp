// SPDX-License-Identifier: BSD-3-Clause
//
// Random histories against the TCP store, with clients that are killed in the middle, checked for linearizability per
// key: is there an order of the operations, each at some instant between its call and its return, in which every one
// returns what it returned? The search is the one of Wing and Gong with Lowe's memoisation of (done set, value): keys
// are small and windows short, so it ends quickly. An operation of a killed client may have happened or not, at any
// time after its call.
#include <cohort/error.h>
#include <cohort/tcp_store.h>
#include <sys/mman.h>

#include <atomic>
#include <optional>
#include <random>
#include <set>

#include "support/ranks.h"
#include "support/stores.h"

namespace cohort::test {
namespace {

using namespace std::chrono_literals;

enum class Kind : std::uint8_t { set, get, add, compare_set, erase };

struct Operation {
  Kind kind;
  int argument;  ///< set, add, compare_set: the number
  int expected;  ///< compare_set
  long called;
  long returned;  ///< LONG_MAX: never
  int result;     ///< what it returned; erase: 1 or 0
};

constexpr int absent = -1;

/// The value after `op` on `value`, or nothing if `op` cannot return what it returned there.
std::optional<int> apply(const Operation& op, int value) {
  const bool known = op.returned != std::numeric_limits<long>::max();
  const auto check = [&](int result, int next) -> std::optional<int> {
    if (known && result != op.result) return std::nullopt;
    return next;
  };
  switch (op.kind) {
    case Kind::set:
      return op.argument;
    case Kind::get:
      return check(value, value);
    case Kind::add:
      return check((value == absent ? 0 : value) + op.argument, (value == absent ? 0 : value) + op.argument);
    case Kind::compare_set:
      if (value == absent) return check(op.expected, absent);
      return value == op.expected ? check(op.argument, op.argument) : check(value, value);
    case Kind::erase:
      return check(value == absent ? 0 : 1, absent);
  }
  return std::nullopt;
}

class Checker {
 public:
  explicit Checker(std::vector<Operation> history) : history_(std::move(history)), done_(history_.size(), false) {}
  bool linearizable() { return search(absent); }

 private:
  bool search(int value) {
    if (!seen_.insert({done_, value}).second) return false;
    // An operation may come next if none that is not done yet returned before it was called.
    long first_return = std::numeric_limits<long>::max();
    bool all_known_done = true;
    for (std::size_t i = 0; i < history_.size(); ++i) {
      if (done_[i]) continue;
      first_return = std::min(first_return, history_[i].returned);
      all_known_done &= history_[i].returned == std::numeric_limits<long>::max();
    }
    if (all_known_done) return true;  // what never returned need not have happened
    for (std::size_t i = 0; i < history_.size(); ++i) {
      if (done_[i] || history_[i].called > first_return) continue;
      const auto next = apply(history_[i], value);
      if (!next) continue;
      done_[i] = true;
      if (search(*next)) return true;
      done_[i] = false;
    }
    return false;
  }

  std::vector<Operation> history_;
  std::vector<bool> done_;
  std::set<std::pair<std::vector<bool>, int>> seen_;
};

TEST(Linearizability, TheCheckerKnowsGoodFromBad) {
  const auto never = std::numeric_limits<long>::max();
  // set(1) returns, then a get that sees nothing: wrong.
  EXPECT_FALSE(Checker({{Kind::set, 1, 0, 1, 2, 0}, {Kind::get, 0, 0, 3, 4, absent}}).linearizable());
  // The same overlapping: fine.
  EXPECT_TRUE(Checker({{Kind::set, 1, 0, 1, 5, 0}, {Kind::get, 0, 0, 3, 4, absent}}).linearizable());
  // Two adds that both return 1: one was lost.
  EXPECT_FALSE(Checker({{Kind::add, 1, 0, 1, 5, 1}, {Kind::add, 1, 0, 2, 6, 1}}).linearizable());
  // A killed client's set may or may not be seen, but not seen and then unseen.
  EXPECT_TRUE(Checker({{Kind::set, 7, 0, 1, never, 0}, {Kind::get, 0, 0, 2, 3, absent}, {Kind::get, 0, 0, 4, 5, 7}})
                  .linearizable());
  EXPECT_FALSE(Checker({{Kind::set, 7, 0, 1, never, 0}, {Kind::get, 0, 0, 2, 3, 7}, {Kind::get, 0, 0, 4, 5, absent}})
                   .linearizable());
}

constexpr int clients = 6;
constexpr int keys = 3;
constexpr int operations = 60;

/// Shared with the clients, so that what they were doing is known after they are killed.
struct History {
  std::atomic<long> clock;
  std::atomic<int> started;
  std::atomic<int> port;  ///< of the store, once it is there; that of a unix socket is 1
  struct Slot {
    int key;
    Operation operation;
  };
  Slot slots[clients][operations];
  std::atomic<int> used[clients];
};

int number(const std::string& text) {
  return text.empty() ? absent : std::stoi(text);
}

void run_client(const TcpStoreOptions& options, History& history, int client, unsigned seed) {
  std::mt19937 random(seed);
  TcpStore store(options);
  history.started.fetch_add(1);
  for (int i = 0; i < operations; ++i) {
    auto& slot = history.slots[client][i];
    slot.key = static_cast<int>(random() % keys);
    const auto key = "key" + std::to_string(slot.key);
    auto& op = slot.operation;
    op.kind = static_cast<Kind>(random() % 5);
    op.argument = static_cast<int>(random() % 4) + 1;
    op.expected = static_cast<int>(random() % 4) + 1;
    op.returned = std::numeric_limits<long>::max();
    op.called = history.clock.fetch_add(1);
    history.used[client].store(i + 1);
    const auto argument = std::to_string(op.argument);
    switch (op.kind) {
      case Kind::set:
        store.set(key, argument);
        break;
      case Kind::get: {
        // A get that does not wait: a timeout says the key was absent at some instant in between.
        try {
          op.result = number(store.get(key, 1ms));
        } catch (const StoreTimeoutError&) {
          op.result = absent;
        }
        break;
      }
      case Kind::add:
        op.result = static_cast<int>(store.add(key, op.argument));
        break;
      case Kind::compare_set:
        op.result = number(store.compare_set(key, std::to_string(op.expected), argument));
        break;
      case Kind::erase:
        op.result = store.delete_key(key) ? 1 : 0;
        break;
    }
    op.returned = history.clock.fetch_add(1);
  }
}

void run_history(const TcpStoreOptions& host_options, unsigned seed) {
  auto* const history = static_cast<History*>(
      ::mmap(nullptr, sizeof(History), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  ASSERT_NE(static_cast<void*>(history), MAP_FAILED);
  {
    std::vector<Process> processes;
    for (int client = 0; client < clients; ++client) {
      processes.emplace_back([&, client] {
        while (history->port.load() == 0) std::this_thread::yield();
        auto endpoint = host_options.endpoint;
        if (endpoint.kind == Endpoint::Kind::tcp) endpoint.port = static_cast<std::uint16_t>(history->port.load());
        run_client({.endpoint = endpoint, .timeout = 20s}, *history, client,
                   seed * 100 + static_cast<unsigned>(client));
        return 0;
      });
    }
    // After the forks: a process that is forked while the store's thread holds a lock of the memory allocator waits for
    // it for ever, and address sanitizer's allocator of GCC 12 does not take its locks for a fork.
    const TcpStore host(host_options);
    history->port = host.port() == 0 ? 1 : host.port();
    // Two are killed somewhere in the middle.
    std::mt19937 random(seed);
    for (int victim = 0; victim < 2; ++victim) {
      const int after = static_cast<int>(random() % operations);
      while (history->used[victim].load() <= after && history->used[victim].load() < operations)
        std::this_thread::yield();
      processes[static_cast<std::size_t>(victim)].signal(SIGKILL);
    }
    for (auto& process : processes) process.wait();
  }
  for (int key = 0; key < keys; ++key) {
    std::vector<Operation> on_key;
    for (int client = 0; client < clients; ++client) {
      for (int i = 0; i < history->used[client].load(); ++i) {
        if (history->slots[client][i].key == key) on_key.push_back(history->slots[client][i].operation);
      }
    }
    EXPECT_GT(on_key.size(), 20U);
    EXPECT_TRUE(Checker(on_key).linearizable()) << "seed " << seed << ", key " << key;
  }
  ::munmap(history, sizeof(History));
}

TEST(Linearizability, RandomHistoriesWithKilledClients) {
  for (unsigned seed = 1; seed <= 10; ++seed) run_history(loopback_host(), seed);
}

TEST(Linearizability, OnAUnixSocket) {
  for (unsigned seed = 11; seed <= 15; ++seed) {
    run_history({.endpoint = unique_unix_endpoint(), .is_host = true, .timeout = 20s}, seed);
  }
}

}  // namespace
}  // namespace cohort::test

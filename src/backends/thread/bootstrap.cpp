// SPDX-License-Identifier: BSD-3-Clause
//
// The bootstrap of a group of threads of one process: the segment is ordinary memory, and the ticket contains the
// number under which the root has registered it.
#include <cohort/error.h>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <condition_variable>
#include <map>
#include <mutex>
#include <set>
#include <vector>

#include "backends/common/shared_bytes.h"
#include "backends/shm/bootstrap/bootstrap.h"
#include "core/cpus.h"
#include "core/immortal.h"
#include "core/parse.h"
#include "core/random.h"

namespace cohort::shm {

namespace {

struct Gathering {
  bool own_cpus = false;  ///< as rank 0 sees it: threads may be bound to different processors
  std::shared_ptr<Segment> segment{};
  std::set<int> joined{};
  bool is_over = false;  ///< a rank has given up
};

/// Process-wide and thread-safe: the groups that are being made, and the memory that groups of threads have handed out.
struct Threads {
  std::mutex mutex;
  std::condition_variable changed;
  std::uint64_t next = 0;
  std::map<std::uint64_t, std::weak_ptr<Gathering>> gatherings;
  std::map<std::uintptr_t, std::size_t> memory;

  static Threads& instance() {
    static Immortal<Threads> threads;
    return *threads;
  }
};

/// Threads can access all memory of their process. As with processes, only memory that was allocated from the group is
/// used that way.
class ThreadPeerMemory final : public PeerMemory {
 public:
  std::optional<std::uint64_t> locate(const void* data, std::size_t bytes) const override {
    const auto at = reinterpret_cast<std::uintptr_t>(data);
    if (bytes == 0 || owns(at, bytes)) return at;
    return std::nullopt;
  }
  std::byte* find(int /*rank*/, std::uint64_t location, std::size_t bytes) const override {
    // NOLINTNEXTLINE(performance-no-int-to-ptr): a location is an address here
    return owns(location, bytes) ? reinterpret_cast<std::byte*>(location) : nullptr;
  }
  // It could, but threads run the algorithms of processes that may not, so that thread sanitizer checks them.
  bool reads_ordinary() const override { return false; }
  void read(int /*rank*/, std::uint64_t /*address*/, void* /*to*/, std::size_t /*bytes*/) const override {}
  bool is_available() const override { return true; }
  GroupMemory allocate(std::size_t bytes) override {
    auto memory = shared_bytes(bytes);
    auto* const data = memory->data();
    const auto at = reinterpret_cast<std::uintptr_t>(data);
    auto& threads = Threads::instance();
    {
      const std::lock_guard lock(threads.mutex);
      threads.memory.emplace(at, memory->size());
    }
    std::shared_ptr<void> owner(data, [memory = std::move(memory), at](void*) {
      auto& all = Threads::instance();
      const std::lock_guard lock(all.mutex);
      all.memory.erase(at);
    });
    return {std::move(owner), data, bytes};
  }
  /// A late thread keeps a reference to the memory it works on, so none of it is handed out while it is in use.
  void abandon(const void* /*data*/) override {}

 private:
  static bool owns(std::uintptr_t at, std::size_t bytes) {
    auto& threads = Threads::instance();
    const std::lock_guard lock(threads.mutex);
    auto it = threads.memory.upper_bound(at);
    if (it == threads.memory.begin()) return false;
    --it;
    return at - it->first <= it->second && bytes <= it->second - (at - it->first);
  }
};

std::string process_mark() {
  return fmt::format("{:02x}", fmt::join(process_nonce(), ""));
}

}  // namespace

EngineParts bootstrap_threads(const Bootstrap& bootstrap) {
  auto& threads = Threads::instance();
  std::shared_ptr<Gathering> gathering;
  const ErrorContext context{.group = bootstrap.group, .op = "new_group"};
  if (bootstrap.rank == 0) {
    gathering = std::make_shared<Gathering>();
    gathering->own_cpus = bootstrap.size <= usable_cpus().count();
    gathering->segment = heap_segment(Board::size_for(bootstrap.size));
    Board::make(gathering->segment, bootstrap.size);
    std::uint64_t number = 0;
    {
      const std::lock_guard lock(threads.mutex);
      number = ++threads.next;
      threads.gatherings.emplace(number, gathering);
    }
    bootstrap.exchange(fmt::format("thread {} {}", process_mark(), number));
  } else {
    const auto ticket = bootstrap.exchange({});
    check_ticket(ticket, bootstrap);
    const auto parts = split(ticket, ' ');
    if (parts.size() != 3 || parts[0] != "thread" || parts[1] != process_mark()) {
      throw BackendError("thread: rank 0 is not a thread of this process: for processes use the backend shm", context);
    }
    const std::lock_guard lock(threads.mutex);
    const auto it = threads.gatherings.find(parse_integer<std::uint64_t>(parts[2]).value_or(0));
    if (it != threads.gatherings.end()) gathering = it->second.lock();
    if (gathering == nullptr) throw PeerLostError("rank 0 left while the group was being made", context);
  }

  const Board board(gathering->segment, bootstrap.size);
  {
    std::unique_lock lock(threads.mutex);
    std::erase_if(threads.gatherings, [](const auto& each) { return each.second.expired(); });
    auto& info = board.info(bootstrap.rank);
    info.pid.store(::getpid(), std::memory_order_relaxed);
    info.state.store(static_cast<std::uint32_t>(RankState::joined), std::memory_order_release);
    gathering->joined.insert(bootstrap.rank);
    threads.changed.notify_all();
    const auto is_decided = [&] {
      return gathering->is_over || gathering->joined.size() == static_cast<std::size_t>(bootstrap.size);
    };
    while (!is_decided() && !bootstrap.deadline.expired()) {
      const auto slice = earlier(bootstrap.deadline, Deadline::after(std::chrono::milliseconds(20)));
      threads.changed.wait_until(lock, slice.when());
      if (is_decided() || !bootstrap.failure_check) continue;
      if (const auto failure = bootstrap.failure_check()) {
        gathering->is_over = true;
        threads.changed.notify_all();
        throw_failure(*failure, context);
      }
    }
    const bool in_time = is_decided();
    if (!in_time || gathering->is_over) {
      gathering->is_over = true;
      threads.changed.notify_all();
      std::vector<int> missing;
      for (int rank = 0; rank < bootstrap.size; ++rank) {
        if (!gathering->joined.contains(rank)) missing.push_back(rank);
      }
      throw OperationTimeoutError(fmt::format("{} of {} ranks did not join: rank{} {}", missing.size(), bootstrap.size,
                                              missing.size() == 1 ? "" : "s", fmt::join(missing, ", ")),
                                  {.group = bootstrap.group, .op = "new_group", .rank = missing.front()});
    }
  }
  EngineParts parts{.name = bootstrap.name,
                    .group = bootstrap.group,
                    .board = board,
                    .rank = bootstrap.rank,
                    .policy = wait_policy(gathering->own_cpus)};
  parts.peer_memory = std::make_unique<ThreadPeerMemory>();
  return parts;
}

}  // namespace cohort::shm

// SPDX-License-Identifier: BSD-3-Clause
#include "backends/shm/memory/arena.h"

#include <cohort/error.h>

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>

#include "backends/shm/memory/process_memory.h"
#include "core/immortal.h"
#include "core/random.h"
#include "core/rank_index.h"

namespace cohort::shm {

namespace {

constexpr std::size_t page = 4096;
/// No program allocates more than this for collectives, and the arenas of 128 ranks on a host still fit into the
/// address space.
constexpr std::size_t largest_arena = std::size_t{256} << 30U;

std::size_t arena_size() {
  const auto memory =
      static_cast<std::size_t>(::sysconf(_SC_PHYS_PAGES)) * static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  std::size_t size = std::min(memory, largest_arena);
  rlimit limit{};
  if (::getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY) {
    size = std::min<std::size_t>(size, limit.rlim_cur);
  }
  return size / page * page;
}

/// Process-wide and thread-safe: this process's arena, and the peers' arenas that are mapped.
struct Arenas {
  std::mutex mutex;
  pid_t owner = 0;  ///< the process that made it: a forked child is another process
  std::shared_ptr<Arena> own;
  std::string why_none;
  std::map<ArenaId, std::weak_ptr<Segment>> peers;

  static Arenas& instance() {
    static Immortal<Arenas> arenas;
    return *arenas;
  }
};

}  // namespace

std::shared_ptr<Arena> Arena::of_this_process() {
  auto& arenas = Arenas::instance();
  const std::lock_guard lock(arenas.mutex);
  if (arenas.owner != ::getpid()) {
    arenas.owner = ::getpid();
    arenas.own.reset();
    arenas.peers.clear();
    try {
      auto fd = make_memfd("cohort-memory", arena_size());
      auto segment = map_memfd(duplicate(fd));
      arenas.own = std::make_shared<Arena>(std::move(fd), std::move(segment));
      arenas.why_none.clear();
    } catch (const Error& e) {
      arenas.why_none = e.message();
    }
  }
  return arenas.own;
}

std::string Arena::why_none() {
  auto& arenas = Arenas::instance();
  const std::lock_guard lock(arenas.mutex);
  return arenas.why_none;
}

Arena::Arena(FileDescriptor fd, std::shared_ptr<Segment> segment) : fd_(std::move(fd)), segment_(std::move(segment)) {
  fill_random(std::as_writable_bytes(std::span(id_)));
  free_.emplace(0, segment_->size());
}

GroupMemory Arena::allocate(std::size_t bytes) {
  if (bytes > segment_->size()) {
    throw BackendError(fmt::format("memory of the group: {} bytes are more than this machine has", bytes));
  }
  const auto wanted = std::max<std::size_t>(page, (bytes + page - 1) / page * page);
  std::size_t offset = 0;
  {
    const std::lock_guard lock(mutex_);
    // Lowest offset first, so that memory that has pages is reused before fresh memory.
    const auto it = std::find_if(free_.begin(), free_.end(), [&](const auto& range) { return range.second >= wanted; });
    if (it == free_.end()) {
      throw BackendError(fmt::format("memory of the group: no room for {} bytes", bytes));
    }
    offset = it->first;
    const auto rest = it->second - wanted;
    free_.erase(it);
    if (rest > 0) free_.emplace(offset + wanted, rest);
    used_.emplace(offset, Block{.bytes = wanted});
  }
  auto* const data = segment_->base() + offset;
  std::shared_ptr<void> owner(data, [arena = shared_from_this(), offset](void*) { arena->free(offset); });
  segment_->reserve(offset, wanted);  // if it throws, the owner returns the range
  std::fill_n(data, wanted, std::byte{0});
  return {std::move(owner), data, bytes};
}

void Arena::free(std::size_t offset) {
  const std::lock_guard lock(mutex_);
  const auto it = used_.find(offset);
  if (it == used_.end() || it->second.is_abandoned) return;
  const auto bytes = it->second.bytes;
  used_.erase(it);
  add_free(offset, bytes);
}

void Arena::add_free(std::size_t offset, std::size_t bytes) {
  const auto next = free_.lower_bound(offset);
  if (next != free_.begin()) {
    const auto before = std::prev(next);
    if (before->first + before->second == offset) {
      offset = before->first;
      bytes += before->second;
      free_.erase(before);
    }
  }
  if (next != free_.end() && offset + bytes == next->first) {
    bytes += next->second;
    free_.erase(next);
  }
  free_.emplace(offset, bytes);
}

std::optional<std::uint64_t> Arena::locate(const void* data, std::size_t bytes) const {
  const auto* const at = static_cast<const std::byte*>(data);
  if (at < segment_->base() || at + bytes > segment_->base() + segment_->size()) return std::nullopt;
  return static_cast<std::uint64_t>(at - segment_->base());
}

std::byte* Arena::find(std::uint64_t offset, std::size_t bytes) const {
  if (offset > segment_->size() || bytes > segment_->size() - offset) return nullptr;
  return segment_->base() + offset;
}

void Arena::abandon(const void* data) {
  const auto offset = locate(data, 0);
  if (!offset) return;
  const std::lock_guard lock(mutex_);
  auto it = used_.upper_bound(*offset);
  if (it != used_.begin()) std::prev(it)->second.is_abandoned = true;
}

std::optional<std::uint64_t> ArenaPeerMemory::locate(const void* data, std::size_t bytes) const {
  if (bytes == 0) return 0;
  return own_ == nullptr ? std::nullopt : own_->locate(data, bytes);
}

std::byte* ArenaPeerMemory::find(int rank, std::uint64_t location, std::size_t bytes) const {
  if (rank == rank_) return own_ == nullptr ? nullptr : own_->find(location, bytes);
  const auto& segment = peers_[index_of(rank)];
  if (segment == nullptr || location > segment->size() || bytes > segment->size() - location) return nullptr;
  return segment->base() + location;
}

void ArenaPeerMemory::read(int rank, std::uint64_t address, void* to, std::size_t bytes) const {
  read_process(pids_[index_of(rank)], address, to, bytes);
}

GroupMemory ArenaPeerMemory::allocate(std::size_t bytes) {
  if (own_ == nullptr) {
    throw NotSupportedError(
        "memory of the group: a rank of this group has no room in its address space to map the others' memory (ulimit "
        "-v, ulimit -f)");
  }
  return own_->allocate(bytes);
}

void ArenaPeerMemory::abandon(const void* data) {
  if (own_ != nullptr) own_->abandon(data);
}

std::shared_ptr<Segment> map_peer_arena(const ArenaId& id, FileDescriptor fd) {
  auto& arenas = Arenas::instance();
  const std::lock_guard lock(arenas.mutex);
  auto& known = arenas.peers[id];
  if (auto segment = known.lock()) return segment;
  auto segment = map_memfd(std::move(fd));
  known = segment;
  return segment;
}

}  // namespace cohort::shm

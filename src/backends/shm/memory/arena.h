// SPDX-License-Identifier: BSD-3-Clause
//
// The memory of this process that other ranks can map: one memfd, as large as the machine's memory and initially empty.
// Peers map all of it once, when a group is made, so that allocation is a local operation: it puts pages under
// addresses that every peer has mapped already. The arena belongs to the process and serves all of its groups.
#pragma once

#include <cohort/memory.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "backends/shm/memory/peer_memory.h"
#include "backends/shm/memory/segment.h"
#include "core/file_descriptor.h"

namespace cohort::shm {

using ArenaId = std::array<std::uint8_t, 16>;

class Arena : public std::enable_shared_from_this<Arena> {
 public:
  /// The arena of this process; a forked child has one of its own. Null where there can be none because the limits on
  /// address space or file size are too low (`why_none` gives the reason).
  static std::shared_ptr<Arena> of_this_process();
  static std::string why_none();

  Arena(FileDescriptor fd, std::shared_ptr<Segment> segment);

  const ArenaId& id() const { return id_; }
  /// The descriptor that is passed to peers.
  int fd() const { return fd_.get(); }

  GroupMemory allocate(std::size_t bytes);
  std::optional<std::uint64_t> locate(const void* data, std::size_t bytes) const;
  std::byte* find(std::uint64_t offset, std::size_t bytes) const;
  void abandon(const void* data);

 private:
  struct Block {
    std::size_t bytes = 0;
    bool is_abandoned = false;
  };
  void free(std::size_t offset);
  void add_free(std::size_t offset, std::size_t bytes);

  FileDescriptor fd_;
  std::shared_ptr<Segment> segment_;
  ArenaId id_;
  std::mutex mutex_;
  std::map<std::size_t, Block> used_;
  std::map<std::size_t, std::size_t> free_;  ///< offset → bytes; ranges are never adjacent
};

/// The arenas of all ranks of a group, including this rank's own.
class ArenaPeerMemory final : public PeerMemory {
 public:
  /// `own` is null if this process has no arena. `peers[rank]` is the mapping of a rank's arena in this process, null
  /// for this rank's own. `pids` holds the processes of all ranks if they may read each other's memory, and is empty
  /// otherwise.
  ArenaPeerMemory(std::shared_ptr<Arena> own, int rank, std::vector<std::shared_ptr<Segment>> peers,
                  std::vector<pid_t> pids)
      : own_(std::move(own)), rank_(rank), peers_(std::move(peers)), pids_(std::move(pids)) {}

  std::optional<std::uint64_t> locate(const void* data, std::size_t bytes) const override;
  std::byte* find(int rank, std::uint64_t location, std::size_t bytes) const override;
  bool reads_ordinary() const override { return !pids_.empty(); }
  void read(int rank, std::uint64_t address, void* to, std::size_t bytes) const override;
  bool is_available() const override { return own_ != nullptr; }
  GroupMemory allocate(std::size_t bytes) override;
  void abandon(const void* data) override;

 private:
  std::shared_ptr<Arena> own_;
  int rank_;
  std::vector<std::shared_ptr<Segment>> peers_;
  std::vector<pid_t> pids_;
};

/// Maps a peer's arena; a process maps it once, however many groups it shares with that peer.
std::shared_ptr<Segment> map_peer_arena(const ArenaId& id, FileDescriptor fd);

}  // namespace cohort::shm

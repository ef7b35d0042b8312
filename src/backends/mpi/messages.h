// SPDX-License-Identifier: BSD-3-Clause
//
// Point-to-point over MPI. A message is found first (MPI_Improbe) and received then: so its size is known before any
// memory is touched, and a message of another size is a MismatchError and nothing worse (Open MPI 4.1 writes past the
// end of a receive that is too short). The price is that no receive is posted early: a message that came before its
// receive is copied once more.
//
// MPI would match receives in the order in which they were posted; since none is, that order is kept here: whichever
// receive finds a message, the earliest that fits gets it.
#pragma once

#include <cohort/backend.h>

#include <atomic>
#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <vector>

#include "backends/mpi/ending.h"
#include "backends/mpi/runtime.h"

namespace cohort::mpi {

class Messages {
 public:
  Messages(Runtime& runtime, Communicator communicator, Ending& ending, int rank)
      : runtime_(runtime), communicator_(communicator), ending_(ending), rank_(rank) {}
  Messages(const Messages&) = delete;
  Messages& operator=(const Messages&) = delete;
  ~Messages();

  /// Messages of the wrong size that MPI still writes to memory of ours.
  bool has_unwanted();

  /// How many transfers have ended so far.
  std::uint64_t ended() const noexcept { return ended_.load(std::memory_order_relaxed); }

  std::unique_ptr<Transfer> start_send(ConstBytes data, int peer, int tag, Call& call);
  std::unique_ptr<Transfer> start_recv(Bytes data, int peer_or_any, int tag, Call& call);

 private:
  class Sending;
  class Receiving;
  /// A message of the wrong size on its way to nowhere.
  struct Unwanted {
    Request request{};
    std::shared_ptr<std::vector<std::byte>> memory{};
  };

  /// Gives what has arrived for this receive, and for those before it, to whom it belongs.
  void look_for(Receiving& receive);
  void discard(const Found& found, const Call& call);
  /// A ValueError for one that this MPI does not have.
  int tag_in_mpi(int tag, const Call& call) const;
  template <class Function>
  auto guarded(const Call& call, int peer, Function&& function);

  Runtime& runtime_;
  const Communicator communicator_;
  Ending& ending_;
  const int rank_;
  std::mutex mutex_;
  std::list<Receiving*> posted_;  // in order, those that have no message yet
  std::vector<Unwanted> unwanted_;
  std::atomic<std::uint64_t> ended_{0};
};

}  // namespace cohort::mpi

// SPDX-License-Identifier: BSD-3-Clause
//
// Point-to-point over MPI. A message is matched first (MPI_Improbe) and received then, so that its size is known before
// any memory is touched: a message of another size is a MismatchError and nothing worse (Open MPI 4.1 writes past the
// end of a receive that is too short). The price is that no receive is posted early, so a message that arrives before
// its receive is copied once more.
//
// MPI would match receives in the order in which they were posted. Since none is posted, that order is kept here:
// whichever receive finds a message, the earliest one that fits gets it.
#pragma once

#include <cohort/backend.h>

#include <atomic>
#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <vector>

#include "backends/common/group_status.h"
#include "backends/mpi/runtime.h"

namespace cohort::mpi {

class PointToPoint {
 public:
  PointToPoint(Runtime& runtime, Communicator communicator, GroupStatus& status, int rank)
      : runtime_(runtime), communicator_(communicator), status_(status), rank_(rank) {}
  PointToPoint(const PointToPoint&) = delete;
  PointToPoint& operator=(const PointToPoint&) = delete;
  ~PointToPoint();

  /// Whether MPI is still receiving messages of the wrong size, into scratch memory.
  bool has_unwanted();

  /// How many transfers have ended so far.
  std::uint64_t ended() const noexcept { return ended_.load(std::memory_order_relaxed); }

  std::unique_ptr<Transfer> start_send(ConstBytes data, int peer, int tag, Call& call);
  std::unique_ptr<Transfer> start_recv(Bytes data, int peer_or_any, int tag, Call& call);

 private:
  class Sending;
  class Receiving;
  /// A message of the wrong size that is received only to be dropped.
  struct Unwanted {
    Request request{};
    std::shared_ptr<std::vector<std::byte>> memory{};
  };

  /// Hands the messages that have arrived for this receive, and for those before it, to the receives they belong to.
  void look_for(Receiving& receive);
  void discard(const Found& found, const Call& call);
  /// Throws a ValueError for a tag that this MPI does not have.
  int tag_in_mpi(int tag, const Call& call) const;
  template <class Function>
  auto guarded(const Call& call, int peer, Function&& function);

  Runtime& runtime_;
  const Communicator communicator_;
  GroupStatus& status_;
  const int rank_;
  std::mutex mutex_;
  std::list<Receiving*> posted_;  // in order, those without a message
  std::vector<Unwanted> unwanted_;
  std::atomic<std::uint64_t> ended_{0};
};

}  // namespace cohort::mpi

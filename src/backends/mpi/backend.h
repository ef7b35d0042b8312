// SPDX-License-Identifier: BSD-3-Clause
//
// The backend `mpi`: each collective is MPI's own non-blocking one, which is tested until it is done or its deadline
// has passed. MPI can neither cancel a collective nor abort a communicator. After a missed deadline the group therefore
// cannot be used any more, and the request, the communicator and whatever memory of ours MPI may still access are never
// freed (docs/engines-mpi.md says what that means for the caller's memory).
//
// All ranks of a collective must make the same MPI call, so the call is chosen only by what all of them know: sizes
// that the operation itself makes equal. Where memory lies is known to one rank alone; memory that is not contiguous is
// copied.
#pragma once

#include <cohort/backend.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "backends/common/group_status.h"
#include "backends/mpi/memory.h"
#include "backends/mpi/point_to_point.h"
#include "backends/mpi/reductions.h"
#include "backends/mpi/runtime.h"

namespace cohort::mpi {

/// What a group is made from.
struct MpiParts {
  Runtime* runtime = nullptr;
  Communicator communicator{};
  int rank = 0;
  std::vector<int> world_ranks{};                     ///< the ranks in MPI_COMM_WORLD of all ranks of the group
  std::string group{};                                ///< id of the group
  bool own_cpus = false;                              ///< each rank has a processor of its own
  std::size_t largest_count = std::size_t{1} << 30U;  ///< in one call of MPI, whose counts are ints
};

class MpiBackend final : public Backend {
 public:
  explicit MpiBackend(MpiParts parts);
  ~MpiBackend() override;
  MpiBackend(const MpiBackend&) = delete;
  MpiBackend& operator=(const MpiBackend&) = delete;

  Capabilities capabilities() const override;

  std::unique_ptr<Transfer> start_send(const Operation& op, Call& call) override;
  std::unique_ptr<Transfer> start_recv(const Operation& op, Call& call) override;
  void rest(Deadline until) override;

  BackendPtr split(const BackendSplit& split, Deadline deadline) override;
  BackendPtr partition(std::span<const BackendSplit> parts, Deadline deadline) override;
  /// Frees threads that wait on this rank. The other ranks notice at their deadlines.
  BackendShrunk shrink(std::span<const int> excluded, Deadline deadline) override;
  void abort(std::string_view reason) override;

 private:
  void all_reduce(const Operation& op, Call& call) override;
  void reduce(const Operation& op, Call& call) override;
  void broadcast(const Operation& op, Call& call) override;
  void all_gather(const Operation& op, Call& call) override;
  void gather(const Operation& op, Call& call) override;
  void scatter(const Operation& op, Call& call) override;
  void reduce_scatter(const Operation& op, Call& call) override;
  void all_to_all(const Operation& op, Call& call) override;
  void barrier(const Operation& op, Call& call) override;
  void send(const Operation& op, Call& call) override;
  int recv(const Operation& op, Call& call) override;

  struct Operands {
    const void* in = nullptr;  ///< null: the input lies where the result goes
    void* out = nullptr;
  };

  void check(Call& call) const;
  /// Starts one of MPI's operations and waits for its end.
  template <class Start>
  void run(Call& call, std::size_t bytes, int culprit, Start&& start) {
    Started started;
    try {
      const auto turn = runtime_.turn(call);
      if constexpr (std::is_same_v<decltype(start()), Request>) {
        started.request = start();
      } else {
        started = start();
      }
    } catch (const Error&) {
      throw;
    } catch (const std::runtime_error& e) {
      fail_to_start(e, call);
    }
    wait(std::move(started), call, bytes, culprit);
  }
  [[noreturn]] void fail_to_start(const std::runtime_error& error, const Call& call);
  void wait(Started started, Call& call, std::size_t bytes, int culprit);
  [[noreturn]] void give_up(Started started, Call& call, int culprit);
  void complete(Transfer& transfer, Call& call, std::size_t bytes, int peer);

  /// The operands in the form that MPI takes: multiplied, widened, aligned.
  Operands prepare(const Operation& op, const MpiReduction& mpi_reduction);
  /// `at` holds the result as MPI left it.
  void finish(const Operation& op, const MpiReduction& mpi_reduction, void* at) const;
  void fill(const Operation& op, const MpiReduction& mpi_reduction, const void* from, std::size_t count,
            void* to) const;
  /// The reduction of a group of one rank.
  void reduce_alone(ConstBytes in, const Operation& op) const;
  /// Sends and receives pieces of any size, anywhere in memory.
  void exchange(std::span<const Piece> sent, std::span<const Piece> received, int culprit, Call& call);
  void broadcast_pieces(Bytes data, int root, Call& call);

  Runtime& runtime_;
  Library& library_;
  const Communicator communicator_;
  const std::vector<int> world_ranks_;
  const std::string group_;
  const bool own_cpus_;
  const std::size_t largest_count_;
  GroupStatus status_;
  PointToPoint point_to_point_;
  std::shared_ptr<Scratch> scratch_;
  std::atomic<std::uint32_t> rests_{0};  // since a transfer ended
  std::atomic<std::uint64_t> seen_ended_{0};
};

}  // namespace cohort::mpi

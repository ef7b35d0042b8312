// SPDX-License-Identifier: BSD-3-Clause
//
// Test doubles of a GPU and of NCCL: they fill both tables of functions. Device memory is ordinary memory; streams keep
// their order, wait for events, and run kernels when the test lets them; ranks are threads of this process, and the
// collectives compute real results. One mutex protects everything, and the calls that were made can be read back.
#pragma once

#include <cohort/device.h>
#include <cohort/dtype.h>

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "backends/nccl/engine_interface.h"

namespace cohort::test {

struct FakeEvent {
  std::uint64_t recorded = 0;  ///< the number of records; a record is complete once `done` has reached it
  std::uint64_t done = 0;
  bool is_captured = false;
  bool is_alive = true;
};

/// An item on a stream: returns true when it is complete.
using FakeItem = std::function<bool()>;

struct FakeStream {
  std::string name{};
  std::deque<FakeItem> items{};
  bool is_capturing = false;
};

struct FakeWorld;

}  // namespace cohort::test

namespace cohort::nccl {

/// NCCL's communicator is opaque; this is the definition of the double.
struct Comm {
  std::shared_ptr<test::FakeWorld> world;
  int rank = 0;
  std::uint64_t operations = 0;
  Result async_error = Result::success;
  bool is_aborted = false;
  bool has_child_coming = false;
  Config config{};
};

}  // namespace cohort::nccl

namespace cohort::test {

struct FakeCall {
  enum class Kind { all_reduce, reduce, broadcast, all_gather, reduce_scatter, send, recv };
  Kind kind{};
  const void* in = nullptr;
  void* out = nullptr;
  std::size_t count = 0;
  nccl::DataType type{};
  nccl::RedOp op{};
  int peer = 0;  ///< or the root
  nccl::Comm* comm = nullptr;
  std::uint64_t number = 0;  ///< number of the collective on this communicator
  double factor = 1;         ///< the factor of a premul_sum
  std::vector<std::byte> sent{};
};

/// What the ranks of a communicator share.
struct FakeWorld {
  int size = 0;
  int arrived = 0;
  /// The call of each rank, by the number of the collective.
  std::map<std::uint64_t, std::map<int, FakeCall>> collectives{};
  std::set<std::uint64_t> computed{};
  std::map<std::pair<int, int>, std::deque<FakeCall>> sent{};  ///< from, to
  std::map<std::uint64_t, std::shared_ptr<FakeWorld>> children{};
};

class FakeGpu {
 public:
  FakeGpu();
  ~FakeGpu();
  FakeGpu(const FakeGpu&) = delete;
  FakeGpu& operator=(const FakeGpu&) = delete;

  /// Tables whose functions lead here. There can be only one FakeGpu at a time.
  const nccl::Engine& engine() const { return engine_; }
  nccl::Engine& engine() { return engine_; }

  void* make_stream(const std::string& name);
  /// Enqueues `fn` on a stream, as a kernel of the user.
  void launch(void* stream, std::function<void()> fn);
  void set_capturing(void* stream, bool is_capturing);

  /// Makes kernels of NCCL wait until they are released.
  void hold_kernels(bool held);
  /// Makes ncclCommInitRankConfig stay in progress.
  void hold_connections(bool held);
  /// Makes launches stay in progress.
  void hold_launches(bool held);
  /// The error that every communicator reports from now on.
  void report(nccl::Result error);

  /// The calls that were made, in order: "event_record user", "all_reduce user", ...
  std::vector<std::string> log() const;
  void clear_log();
  int count(const std::string& call) const;
  int alive_events() const;
  /// Whether an event of a capture was queried, or any event by a thread that is not in relaxed capture mode: either
  /// can invalidate captures.
  bool asked_about_capture() const { return asked_about_capture_; }
  nccl::Config last_config() const;

  // Used by the functions of the tables.
  static FakeGpu& instance();
  std::unique_lock<std::mutex> lock() { return std::unique_lock(mutex_); }
  FakeStream& stream(void* handle);
  void note(const std::string& call) { log_.push_back(call); }
  /// Runs whatever can run on any stream.
  void pump();
  void enqueue(void* handle, FakeItem item);
  nccl::Result issue(FakeCall call, void* stream);
  nccl::Result end_group();
  bool advance(const FakeCall& call);
  nccl::Result state_of(const nccl::Comm& comm) const;

  nccl::Result init(nccl::Comm** comm, int size, const nccl::UniqueId& id, int rank, const nccl::Config& config);
  /// The child's handle is stored after the call, by a thread of NCCL's own; until then the parent must not be used.
  void promise_child(nccl::Comm* parent, nccl::Comm** place, std::shared_ptr<FakeWorld> world, int rank,
                     const nccl::Config& config);
  nccl::Comm* make_comm(std::shared_ptr<FakeWorld> world, int rank, const nccl::Config& config);

  int next_id = 0;
  int version = nccl::version_of(2, 27, 3);
  std::map<int, double> factors{};
  int next_op = 100;
  std::map<std::string, std::shared_ptr<FakeWorld>> worlds{};
  std::vector<std::unique_ptr<FakeEvent>> events{};
  std::vector<std::unique_ptr<nccl::Comm>> comms{};
  std::vector<std::unique_ptr<FakeStream>> streams{};
  bool asked_about_capture_ = false;
  bool kernels_held = false;
  bool connections_held = false;
  bool launches_held = false;

 private:
  void compute(std::map<int, FakeCall>& calls, int size);

  nccl::Engine engine_;
  mutable std::mutex mutex_;
  std::map<std::thread::id, FakeStream> null_streams_;  ///< one for each rank, as if it were a process
  std::vector<std::string> log_;
  std::vector<std::jthread> births_;
  nccl::Config last_config_{};
};

}  // namespace cohort::test

// SPDX-License-Identifier: BSD-3-Clause
//
// A GPU and an NCCL that are not there: doubles of both tables of functions. Device memory is ordinary memory; streams
// keep their order, wait for events, and run kernels when the test lets them; ranks are threads of this process, and
// the collectives compute. Everything is under one mutex, and what happened can be read back.
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
  std::uint64_t recorded = 0;  ///< how often; a record is done when `done` has come to it
  std::uint64_t done = 0;
  bool is_captured = false;
  bool is_alive = true;
};

/// Something on a stream: true when it is through.
using FakeItem = std::function<bool()>;

struct FakeStream {
  std::string name{};
  std::deque<FakeItem> items{};
  bool is_capturing = false;
};

struct FakeWorld;

}  // namespace cohort::test

namespace cohort::nccl {

/// NCCL's communicator is opaque; this is the double's.
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
  int peer = 0;  ///< or root
  nccl::Comm* comm = nullptr;
  std::uint64_t number = 0;  ///< of collectives on this communicator
  double factor = 1;         ///< of a premul_sum
  std::vector<std::byte> sent{};
};

/// What the ranks of a communicator share.
struct FakeWorld {
  int size = 0;
  int arrived = 0;
  /// By number: what each rank brought.
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

  /// Tables whose functions come here. One FakeGpu at a time.
  const nccl::Engine& engine() const { return engine_; }
  nccl::Engine& engine() { return engine_; }

  void* make_stream(const std::string& name);
  /// Puts `fn` onto a stream, as a kernel of the user's.
  void launch(void* stream, std::function<void()> fn);
  void set_capturing(void* stream, bool is_capturing);

  /// Kernels of NCCL wait until they are let go.
  void hold_kernels(bool held);
  /// ncclCommInitRankConfig does not get through.
  void hold_connections(bool held);
  /// Launches stay in progress.
  void hold_launches(bool held);
  /// What every communicator reports from now on.
  void report(nccl::Result error);

  /// What was called, in order; "event_record user", "all_reduce user", ...
  std::vector<std::string> log() const;
  void clear_log();
  int count(const std::string& call) const;
  int alive_events() const;
  /// Somebody asked about an event of a capture, or about any without leave: that breaks captures.
  bool asked_about_capture() const { return asked_about_capture_; }
  nccl::Config last_config() const;

  // For the functions of the tables.
  static FakeGpu& instance();
  std::unique_lock<std::mutex> lock() { return std::unique_lock(mutex_); }
  FakeStream& stream(void* handle);
  void note(const std::string& call) { log_.push_back(call); }
  /// Runs what can run on any stream.
  void pump();
  void enqueue(void* handle, FakeItem item);
  nccl::Result issue(FakeCall call, void* stream);
  nccl::Result end_group();
  bool advance(const FakeCall& call);
  nccl::Result state_of(const nccl::Comm& comm) const;

  nccl::Result init(nccl::Comm** comm, int size, const nccl::UniqueId& id, int rank, const nccl::Config& config);
  /// The child's handle appears after the call, by a thread of NCCL's own; until then the parent is not to be used.
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
  std::map<std::thread::id, FakeStream> null_streams_;  ///< each rank has one, as if it were a process
  std::vector<std::string> log_;
  std::vector<std::jthread> births_;
  nccl::Config last_config_{};
};

}  // namespace cohort::test

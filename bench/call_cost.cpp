// SPDX-License-Identifier: BSD-3-Clause
//
// Where the time of a small collective goes, for an idle group of two processes with a core each and the flight
// recorder on. Two of the parts need the other rank and are measured with it:
//
//   flags      posts alone: each rank raises the flag of its line and waits for the other's; the floor on these cores
//   engine     the same operation through the backend: signature, payload, comparison, arithmetic
//   call       the same operation through ProcessGroup, as users call it
//
// The others are measured by each rank for itself:
//
//   arguments  a call on a backend that does nothing, less order and record
//   order      CollectiveQueue: entering and leaving
//   record     the flight recorder's entry: begin and end
//
// What a call costs above the flags is less than the sum of its parts, because some of them are done while the other
// rank's line is on its way.
#include <cohort/backend.h>
#include <cohort/process_group.h>

#include <fmt/format.h>
#include <sys/mman.h>

#include <array>
#include <memory>
#include <optional>
#include <stdexcept>

#include "backends/shm/protocol/atomics.h"
#include "backends/shm/protocol/posts.h"
#include "benchmarks.h"
#include "group/collective_queue.h"
#include "measure/interleaved.h"
#include "measure/rank_processes.h"
#include "measure/statistics.h"
#include "observe/recorder.h"
#include "servers.h"

namespace cohort::benchmarks {

namespace {

using namespace std::chrono_literals;

constexpr int ranks = 2;

enum class Figure { flags, barrier_engine, barrier, all_reduce_engine, all_reduce, empty_call, order, record };
constexpr std::array figures{Figure::flags,      Figure::barrier_engine, Figure::barrier, Figure::all_reduce_engine,
                             Figure::all_reduce, Figure::empty_call,     Figure::order,   Figure::record};

struct Question {
  Figure figure;
  int repeats = 0;
};
/// Lines that the processes share, as the board of a group has them.
class Lines {
 public:
  using Post = shm::Post<shm::StdAtomics>;

  Lines() : area_(::mmap(nullptr, sizeof(Area), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0)) {
    if (area_ == MAP_FAILED) throw std::runtime_error("call cost: no memory to share");
  }
  ~Lines() { ::munmap(area_, sizeof(Area)); }
  Lines(const Lines&) = delete;
  Lines& operator=(const Lines&) = delete;

  Post& post(int rank, std::uint32_t k) const {
    return static_cast<Area*>(area_)->slots[static_cast<std::size_t>(rank)][k % shm::post_depth].post;
  }

 private:
  struct alignas(2 * shm::cache_line) Slot {
    Post post;
  };
  struct Area {
    std::array<std::array<Slot, shm::post_depth>, ranks> slots;
  };
  void* area_;
};

struct Spin {
  void waits_for(int /*rank*/) {}
  shm::Pace next(std::uint32_t /*round*/) { return shm::Pace::look; }
  std::chrono::nanoseconds max_sleep() { return {}; }
};

class NoBackend final : public Backend {
 public:
  NoBackend() : Backend("none", 0, ranks) {}
  void all_reduce(const Operation& /*op*/, Call& /*call*/) override {}
};

class Rank {
 public:
  Rank(int rank, int size, const Lines* lines)
      : rank_(rank),
        cpu_(OnCpu::allowed()[static_cast<std::size_t>(rank)]),
        lines_(*lines),
        order_(lines_, rank, ranks),
        group_(shm_group(rank, size)),
        backend_(group_->default_backend()),
        empty_(std::make_shared<ProcessGroup>(nullptr, 0, ranks, 60s)),
        trace_({.id = "call cost", .backend = "none", .rank = rank, .size = ranks}) {
    empty_->add_backend(DeviceType::cpu, std::make_shared<NoBackend>());
  }

  Interval answer(const Question& question) {
    group_->barrier();
    return timed([&] {
      for (int i = 0; i < question.repeats; ++i) run(question.figure);
    });
  }

 private:
  void run(Figure figure) {
    switch (figure) {
      case Figure::flags: {
        const auto k = order_.begin();
        raise(lines_.post(rank_, k).flag, k);
        Spin spin;
        return order_.await_all_posts(k, spin);
      }
      case Figure::barrier_engine: {
        Call call(OpType::barrier, 0, 60s);
        backend_->perform(Operation::barrier(), call);
        return;
      }
      case Figure::all_reduce_engine: {
        Call call(OpType::all_reduce, 0, 60s);
        const auto bytes = std::as_writable_bytes(std::span(&value_, 1));
        backend_->perform(Operation::all_reduce(bytes, bytes, DType::f32, ReduceOp::sum()), call);
        return;
      }
      case Figure::barrier:
        group_->barrier();
        return;
      case Figure::all_reduce:
        group_->all_reduce(std::span(&value_, 1));
        return;
      case Figure::empty_call:
        empty_->all_reduce(std::span(&value_, 1));
        return;
      case Figure::order:
        queue_.try_enter();
        return queue_.leave();
      case Figure::record:
        return trace_.completed(trace_.begin(
            {.op = "all_reduce", .starts_at_once = true, .collective_sequence = ++sequence_, .op_id = sequence_}));
    }
  }

  const int rank_;
  OnCpu cpu_;
  const Lines& lines_;
  shm::PostOrder<const Lines> order_;
  ProcessGroupPtr group_;
  BackendPtr backend_;
  ProcessGroupPtr empty_;
  CollectiveQueue queue_{"call-cost"};
  observe::GroupTrace trace_;
  std::int64_t sequence_ = 0;
  float value_ = 0;
};

void measure(int rounds, Report& report) {
  constexpr int repeats = 20000;
  if (OnCpu::allowed().size() < ranks) {
    fmt::print("the cost of a call is not measured: its {} ranks need a core each\n", ranks);
    return;
  }
  const Lines lines;
  ShmRanks<Rank, Question> processes(ranks, &lines);
  const auto nanoseconds = [&](std::size_t figure) {
    return slowest(processes.ask({figures[figure], repeats})) / repeats * 1e9;
  };
  take_turns(figures.size(), 1, nanoseconds);
  const auto times = take_turns(figures.size(), rounds, nanoseconds);
  const auto of = [&](Figure figure) -> const std::vector<double>& { return times[static_cast<std::size_t>(figure)]; };
  const auto add = [&](const std::string& what, double ours) {
    report.add({.what = what, .unit = "ns", .ours = ours});
  };
  const auto add_above_flags = [&](const std::string& what, Figure figure, std::optional<Bar> bar = {}) {
    report.add({.what = what,
                .unit = "ns",
                .ours = median(of(figure)),
                .peer = median(of(Figure::flags)),
                .peer_name = "flags alone",
                .difference = median_difference(of(figure), of(Figure::flags)),
                .bar = bar});
  };
  add("flags", median(of(Figure::flags)));
  add("order", median(of(Figure::order)));
  add("record", median(of(Figure::record)));
  add("arguments", median_difference(of(Figure::empty_call), of(Figure::order)) - median(of(Figure::record)));
  add_above_flags("engine, barrier", Figure::barrier_engine);
  add_above_flags("engine, all_reduce of 4 B", Figure::all_reduce_engine);
  add_above_flags("call, barrier", Figure::barrier, at_most(60, ranks));
  add_above_flags("call, all_reduce of 4 B", Figure::all_reduce, at_most(60, ranks));
  report.print("The time of a small collective of 2 processes (difference: above the flags alone)");
}

}  // namespace

void add_call_cost(Program& program) {
  program.part("call", [&program](Report& report) { measure(program.rounds(11), report); });
}

}  // namespace cohort::benchmarks

// SPDX-License-Identifier: BSD-3-Clause
//
// What backend gloo adds to Gloo, and what backend hybrid saves beside it.
//
//   bench/engines/gloo_bench [--only overhead,hybrid] [--rounds N]
//
// overhead: two ranks, each collective through Cohort and on the raw library, in turn. Bars: within 5 % from 64 KiB on,
// at most 3 us more below. hybrid: all_reduce of eight ranks, by COHORT_HOST_ID on two hosts of four, beside plain Gloo
// among the same eight, on ordinary memory and on memory of the group. Bar: from 1 MiB on at least twice as fast.
#include <cohort/cohort.h>
#include <cohort/endpoint.h>
#include <gloo/allgather.h>
#include <gloo/allreduce.h>
#include <gloo/barrier.h>
#include <gloo/broadcast.h>
#include <gloo/math.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/store.h>
#include <gloo/transport/tcp/device.h>

#include <fmt/format.h>

#include <array>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "measure/forked_store.h"
#include "measure/interleaved.h"
#include "measure/rank_processes.h"
#include "measure/sizes.h"
#include "program.h"

namespace {

using namespace cohort;
using namespace cohort::bench;
using namespace std::chrono_literals;

constexpr std::size_t most_bytes = 64U << 20U;

enum class Op { all_reduce, broadcast, all_gather, barrier };
constexpr std::array names{"all_reduce", "broadcast", "all_gather", "barrier"};

struct Question {
  int which = 0;
  Op op = Op::all_reduce;
  std::size_t bytes = 0;
  int repeats = 1;
};

/// Gloo's own words for a store, over ours.
class GlooStore final : public ::gloo::rendezvous::Store {
 public:
  explicit GlooStore(StorePtr store) : store_(std::move(store)) {}
  void set(const std::string& key, const std::vector<char>& data) override {
    store_->set(key, std::string_view(data.data(), data.size()));
  }
  std::vector<char> get(const std::string& key) override {
    const auto value = store_->get(key);
    return {value.begin(), value.end()};
  }
  void wait(const std::vector<std::string>& keys) override { store_->wait(keys); }

 private:
  StorePtr store_;
};

struct Memory {
  explicit Memory(int size)
      : ordinary(most_bytes / sizeof(float)), part(ordinary), whole(size == 2 ? 2 * part.size() : 0) {}
  std::vector<float> ordinary;
  std::span<float> part;
  std::vector<float> whole;
};

void call(ProcessGroup& group, Memory& memory, const Question& question) {
  const auto part = memory.part.first(question.bytes / sizeof(float));
  switch (question.op) {
    case Op::all_reduce:
      group.all_reduce(part);
      break;
    case Op::broadcast:
      group.broadcast(part);
      break;
    case Op::all_gather:
      group.all_gather(std::span(memory.whole).first(2 * part.size()), part);
      break;
    case Op::barrier:
      group.barrier();
      break;
  }
}

void call(const std::shared_ptr<::gloo::Context>& context, Memory& memory, const Question& question) {
  const auto floats = question.bytes / sizeof(float);
  switch (question.op) {
    case Op::all_reduce: {
      ::gloo::AllreduceOptions options(context);
      options.setOutput(memory.part.data(), floats);
      using Sum = void (*)(void*, const void*, const void*, std::size_t);
      options.setReduceFunction(static_cast<Sum>(&::gloo::sum<float>));
      ::gloo::allreduce(options);
      break;
    }
    case Op::broadcast: {
      ::gloo::BroadcastOptions options(context);
      options.setOutput(memory.part.data(), floats);
      options.setRoot(0);
      ::gloo::broadcast(options);
      break;
    }
    case Op::all_gather: {
      ::gloo::AllgatherOptions options(context);
      options.setInput(memory.part.data(), floats);
      options.setOutput(memory.whole.data(), 2 * floats);
      ::gloo::allgather(options);
      break;
    }
    case Op::barrier: {
      ::gloo::BarrierOptions options(context);
      ::gloo::barrier(options);
      break;
    }
  }
}

template <class First, class Second>
auto answer(First first, Second second, int size) {
  return [first, second, memory = std::make_shared<Memory>(size)](const Question& question) {
    return timed([&] {
      for (int i = 0; i < question.repeats; ++i) {
        question.which == 0 ? first(*memory, question) : second(*memory, question);
      }
    });
  };
}

/// The first with another, in turn.
Interleaved compare(RankProcesses<Question>& ranks, Op op, std::size_t bytes, int rounds, int with = 1) {
  return interleave(
      [&](int which, int repeats) {
        return ranks.ask({.which = which == 0 ? 0 : with, .op = op, .bytes = bytes, .repeats = repeats}).slowest() *
               1e6 / repeats;
      },
      rounds);
}

void measure_overhead(int rounds, Report& report) {
  const ForkedStore forked_store;
  RankProcesses<Question> ranks(2, [&](int rank) {
    const auto store = forked_store.open(rank, 60s);
    const std::shared_ptr<ProcessGroup> group =
        new_group("gloo", 60s, "cpu", {}, {.store = store, .rank = rank, .size = 2});
    auto context = std::make_shared<::gloo::rendezvous::Context>(rank, 2);
    auto device = ::gloo::transport::tcp::CreateDevice("127.0.0.1");
    GlooStore raw_store(std::make_shared<PrefixStore>("raw", store));
    context->connectFullMesh(raw_store, device);
    return answer([context](Memory& memory, const Question& question) { call(context, memory, question); },
                  [group](Memory& memory, const Question& question) { call(*group, memory, question); }, 2);
  });
  for (const auto op : {Op::all_reduce, Op::broadcast, Op::all_gather, Op::barrier}) {
    for (const std::size_t bytes : {4UL, 1UL << 10U, 16UL << 10U, 64UL << 10U, 1UL << 20U, 16UL << 20U}) {
      const auto measured_bytes = op == Op::barrier ? 0 : bytes;
      const auto result = compare(ranks, op, measured_bytes, rounds);
      report.add(
          overhead_row(fmt::format("{}, {}", names.at(static_cast<std::size_t>(op)), format_size(measured_bytes)),
                       measured_bytes, result, "Gloo"));
      if (op == Op::barrier) break;
    }
  }
  report.print("Backend gloo and Gloo itself, 2 ranks");
}

void measure_hybrid(int rounds, Report& report) {
  constexpr int size = 8;
  const ForkedStore forked_store;
  enum Which { plain_gloo, on_ordinary_memory, on_group_memory };
  RankProcesses<Question> ranks(size, [&](int rank) {
    ::setenv("COHORT_HOST_ID", rank < size / 2 ? "first" : "second", 1);
    const auto store = forked_store.open(rank, 60s);
    const auto group = [&](const std::string& backend) -> std::shared_ptr<ProcessGroup> {
      return new_group(backend, 60s, "cpu", {}, {.store = store, .rank = rank, .size = size});
    };
    const auto gloo = group("gloo");
    const auto hybrid = group("hybrid");
    const auto of_the_group = std::make_shared<GroupMemory>(hybrid->allocate(most_bytes));
    const auto memory = std::make_shared<Memory>(size);
    const auto shared = std::make_shared<Memory>(size);
    shared->part = of_the_group->as<float>();
    return [gloo, hybrid, of_the_group, memory, shared](const Question& question) {
      return timed([&] {
        for (int i = 0; i < question.repeats; ++i) {
          call(question.which == plain_gloo ? *gloo : *hybrid, question.which == on_group_memory ? *shared : *memory,
               question);
        }
      });
    };
  });
  for (const auto which : {on_ordinary_memory, on_group_memory}) {
    for (const std::size_t bytes : {4UL, 1UL << 10U, 64UL << 10U, 1UL << 20U, 4UL << 20U, 16UL << 20U, 64UL << 20U}) {
      const auto result = compare(ranks, Op::all_reduce, bytes, rounds, which);
      Row row{.what = format_size(bytes), .unit = "us", .ours = result.second, .peer = result.first};
      row.peer_name = "gloo";
      row.ratio = 1 / result.ratio;
      if (bytes >= (1U << 20U)) row.bar = Bar{Bar::Kind::at_least, 2};
      report.add(row);
    }
    report.print(fmt::format(
        "Backend hybrid, all_reduce of 8 ranks on 2 hosts of 4 (by name), {} (ratio: how many times faster than gloo)",
        which == on_ordinary_memory ? "ordinary memory" : "memory of the group"));
  }
}

}  // namespace

int main(int argc, char** argv) {
  Program program("Measures what backend gloo adds to Gloo, and how much faster than gloo backend hybrid is.",
                  {"overhead", "hybrid"});
  int rounds = 31;
  program.app.add_option("--rounds", rounds, "Of both, in turn, for each figure")->capture_default_str();
  return program.run(argc, argv, [&](Report& report) {
    if (program.wants("overhead")) measure_overhead(rounds, report);
    if (program.wants("hybrid")) measure_hybrid(rounds, report);
  });
}

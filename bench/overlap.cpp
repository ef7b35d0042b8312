// SPDX-License-Identifier: BSD-3-Clause
#include <cohort/new_group.h>

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>
#include <memory>
#include <stdexcept>

#include "group_benchmarks.h"
#include "measure/interleaved.h"
#include "measure/rank_processes.h"
#include "measure/statistics.h"
#include "servers.h"

namespace cohort::bench {

namespace {

using namespace std::chrono_literals;

constexpr std::size_t all_reduce_floats = std::size_t{16} << 18U;  // 16 MiB
constexpr std::size_t computed_floats = std::size_t{256} << 8U;    // 256 KiB: stays in the cache of its core

enum class Figure { blocking, asynchronous, computation, overlapped };
constexpr std::array figures{Figure::blocking, Figure::asynchronous, Figure::computation, Figure::overlapped};

struct Question {
  Figure figure;
  int passes = 0;  ///< of the computation over its numbers
};
using Ranks = RankProcesses<Question>;

enum class Memory { ordinary, of_the_group };

class Rank {
 public:
  Rank(int rank, int size, Memory memory)
      : group_(new_group("shm", 60s, "cpu", {},
                         {.store = std::make_shared<TcpStore>(unix_client_options()), .rank = rank, .size = size})) {
    if (memory == Memory::of_the_group) {
      shared_ = group_->allocate(all_reduce_floats * sizeof(float));
      data_ = shared_.as<float>();
    } else {
      own_.resize(all_reduce_floats);
      data_ = own_;
    }
  }

  Interval answer(const Question& question) {
    std::fill(data_.begin(), data_.end(), 1.0F);
    group_->barrier();
    const auto interval = timed([&] { run(question); });
    const auto expected = question.figure == Figure::computation ? 1.0F : static_cast<float>(group_->size());
    if (data_.front() != expected || data_.back() != expected) throw std::runtime_error("all_reduce: a wrong result");
    return interval;
  }

 private:
  void run(const Question& question) {
    switch (question.figure) {
      case Figure::blocking:
        group_->all_reduce(data_);
        break;
      case Figure::asynchronous:
        group_->all_reduce(data_, {.async_op = true}).wait();
        break;
      case Figure::computation:
        compute(question.passes);
        break;
      case Figure::overlapped: {
        auto work = group_->all_reduce(data_, {.async_op = true});
        compute(question.passes);
        work.wait();
        break;
      }
    }
  }

  void compute(int passes) {
    for (int pass = 0; pass < passes; ++pass) {
      for (auto& value : numbers_) value = value * 0.999F + 0.001F;
    }
  }

  ProcessGroupPtr group_;
  GroupMemory shared_;
  std::vector<float> own_;
  std::span<float> data_;
  std::vector<float> numbers_ = std::vector<float>(computed_floats, 2.0F);
};

/// In milliseconds, from the first start to the last end: a rank that starts late delays an all_reduce, so the late
/// start has to count for the computation too.
double measure_once(Ranks& ranks, const Question& question) {
  return ranks.ask(question).span() * 1e3;
}

/// The number of passes with which the computation takes as long as the all_reduce.
int calibrate(Ranks& ranks) {
  constexpr int tries = 5;
  constexpr int passes = 100;
  std::vector<double> all_reduces;
  std::vector<double> computations;
  for (int i = 0; i < tries; ++i) {
    all_reduces.push_back(measure_once(ranks, {.figure = Figure::asynchronous}));
    computations.push_back(measure_once(ranks, {.figure = Figure::computation, .passes = passes}));
  }
  return std::max(1, static_cast<int>(std::lround(passes * median(all_reduces) / median(computations))));
}

void measure_memory(Memory memory, const OverlapOptions& options, Report& report) {
  constexpr double most = 1.10;
  const auto server = start_store_on_unix_socket();
  Ranks ranks(options.ranks, [&](int rank) -> Ranks::Answer {
    auto each = std::make_shared<Rank>(rank, options.ranks, memory);
    return [each](const Question& question) { return each->answer(question); };
  });
  const int passes = calibrate(ranks);

  const auto times = take_turns(figures.size(), options.rounds, [&](std::size_t figure) {
    return measure_once(ranks, {.figure = figures.at(figure), .passes = passes});
  });
  const auto times_of = [&](Figure figure) -> const std::vector<double>& {
    return times[static_cast<std::size_t>(figure)];
  };
  std::vector<double> longer;
  std::ranges::transform(times_of(Figure::asynchronous), times_of(Figure::computation), std::back_inserter(longer),
                         std::ranges::max);

  const auto* const name = memory == Memory::ordinary ? "ordinary memory" : "memory of the group";
  const auto cores = OnCpu::allowed().size();
  const auto needed = 2 * static_cast<std::size_t>(options.ranks);
  Row row{.what = fmt::format("{}, overlapped", name), .unit = "ms", .ours = median(times_of(Figure::overlapped))};
  row.peer = median(longer);
  row.peer_name = "longer alone";
  row.ratio = median_ratio(times_of(Figure::overlapped), longer);
  row.note = fmt::format("alone: all_reduce {:.1f} ms, computation {:.1f} ms", median(times_of(Figure::asynchronous)),
                         median(times_of(Figure::computation)));
  if (cores >= needed) {
    row.bar = Bar{Bar::Kind::at_most, most};
  } else {
    row.note += fmt::format("; not judged: {} ranks keep {} cores busy, there are {}, none to spare", options.ranks,
                            needed, cores);
  }
  report.add(row);

  // The comparison above is fair only if the asynchronous form is not slow by itself.
  Row alone{.what = fmt::format("{}, asynchronous", name), .unit = "ms"};
  alone.ours = median(times_of(Figure::asynchronous));
  alone.peer = median(times_of(Figure::blocking));
  alone.peer_name = "blocking";
  alone.ratio = median_ratio(times_of(Figure::asynchronous), times_of(Figure::blocking));
  report.add(alone);
}

}  // namespace

void measure_overlap(const OverlapOptions& options, Report& report) {
  measure_memory(Memory::ordinary, options, report);
  measure_memory(Memory::of_the_group, options, report);
}

}  // namespace cohort::bench

// SPDX-License-Identifier: BSD-3-Clause
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>
#include <memory>
#include <stdexcept>

#include "benchmarks.h"
#include "measure/interleaved.h"
#include "measure/rank_processes.h"
#include "measure/statistics.h"
#include "servers.h"

namespace cohort::benchmarks {

namespace {

constexpr std::size_t all_reduce_floats = std::size_t{16} << 18U;  // 16 MiB
constexpr std::size_t computed_floats = std::size_t{256} << 8U;    // 256 KiB: stays in the cache of its core

enum class Figure { blocking, asynchronous, computation, overlapped };
constexpr std::array figures{Figure::blocking, Figure::asynchronous, Figure::computation, Figure::overlapped};

struct Question {
  Figure figure;
  int passes = 0;  ///< of the computation over its numbers
};
enum class Memory { ordinary, of_the_group };

class Rank {
 public:
  Rank(int rank, int size, Memory memory) : group_(shm_group(rank, size)) {
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
using Ranks = ShmRanks<Rank, Question>;

/// In milliseconds, from the first start to the last end: a rank that starts late delays an all_reduce, so the late
/// start has to count for the computation too.
double measure_once(Ranks& ranks, const Question& question) {
  return span(ranks.ask(question)) * 1e3;
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

void measure_memory(Memory memory, int rounds, int size, Report& report) {
  Ranks ranks(size, memory);
  const int passes = calibrate(ranks);
  const auto times = take_turns(figures.size(), rounds, [&](std::size_t figure) {
    return measure_once(ranks, {.figure = figures.at(figure), .passes = passes});
  });
  const auto times_of = [&](Figure figure) -> const std::vector<double>& {
    return times[static_cast<std::size_t>(figure)];
  };
  const auto& asynchronous = times_of(Figure::asynchronous);
  const auto& computation = times_of(Figure::computation);
  std::vector<double> longer;
  std::ranges::transform(asynchronous, computation, std::back_inserter(longer), std::ranges::max);

  const auto* const name = memory == Memory::ordinary ? "ordinary memory" : "memory of the group";
  const auto cores = OnCpu::allowed().size();
  const auto needed = 2 * static_cast<std::size_t>(size);
  auto row = compared(fmt::format("{}, overlapped", name), "ms", times_of(Figure::overlapped), longer, "longer alone");
  row.note =
      fmt::format("alone: all_reduce {:.1f} ms, computation {:.1f} ms", median(asynchronous), median(computation));
  if (cores >= needed) {
    row.bar = at_most(1.10);
  } else {
    row.note +=
        fmt::format("; not judged: {} ranks keep {} cores busy, there are {}, none to spare", size, needed, cores);
  }
  report.add(row);
  // The comparison above is fair only if the asynchronous form is not slow by itself.
  report.add(
      compared(fmt::format("{}, asynchronous", name), "ms", asynchronous, times_of(Figure::blocking), "blocking"));
}

}  // namespace

void add_overlap(Program& program) {
  const auto ranks = program.number("--overlap-ranks", 2, "Ranks that compute and reduce; each needs two cores");
  program.part("overlap", [=, &program](Report& report) {
    for (const auto memory : {Memory::ordinary, Memory::of_the_group}) {
      measure_memory(memory, program.rounds(11), *ranks, report);
    }
    report.print(fmt::format("16 MiB all_reduce beside a computation, {} ranks", *ranks));
  });
}

}  // namespace cohort::benchmarks

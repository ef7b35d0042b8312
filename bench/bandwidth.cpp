// SPDX-License-Identifier: BSD-3-Clause
//
// The floor: rank r of n combines slice r of all ranks' memory into all ranks' memory, so it reads n slices of S/n
// bytes and writes n. Here all ranks run the same kernels at once on memory of their own, without any synchronisation.
// Which order of walking over the memory is fastest depends on the machine, so several are tried.
#include <fmt/format.h>
#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <memory>
#include <new>
#include <stdexcept>
#include <string_view>

#include "benchmarks.h"
#include "measure/interleaved.h"
#include "measure/rank_processes.h"
#include "measure/statistics.h"
#include "reduce/kernels.h"
#include "servers.h"

namespace cohort::benchmarks {

namespace {

constexpr std::size_t total_bytes = std::size_t{64} << 20U;
constexpr std::size_t cache_line = 64;
constexpr std::size_t huge_page = std::size_t{2} << 20U;

struct Walk {
  std::string_view name;
  bool in_slices;  ///< all slices side by side; else one after another
  bool is_streaming;
};
constexpr std::array walks{
    Walk{"slices side by side", true, false}, Walk{"slices side by side, streaming stores", true, true},
    Walk{"one after another", false, false}, Walk{"one after another, streaming stores", false, true}};

constexpr std::size_t all_reduce = walks.size();  // the figure that is not a walk
constexpr std::size_t figures = walks.size() + 1;

struct Question {
  std::size_t figure;
};
/// Uses huge pages where the system has them, so that the page table does not add to the floor.
class OwnMemory {
 public:
  OwnMemory() : data_(static_cast<float*>(std::aligned_alloc(huge_page, total_bytes)), &std::free) {
    if (!data_) throw std::bad_alloc();
    ::madvise(data_.get(), total_bytes, MADV_HUGEPAGE);
  }
  std::span<float> floats() const { return {data_.get(), total_bytes / sizeof(float)}; }

 private:
  std::unique_ptr<float, decltype(&std::free)> data_;
};

void walk(std::span<float> memory, const Walk& how, int ranks) {
  const std::size_t slices = how.in_slices ? static_cast<std::size_t>(ranks) : 1;
  // Whole lines: streaming stores need them.
  const auto elements = memory.size_bytes() / slices / cache_line * cache_line / sizeof(float);
  std::vector<void*> outputs;
  for (std::size_t i = 0; i < slices; ++i) outputs.push_back(memory.data() + i * elements);
  const std::vector<const void*> sources(outputs.begin(), outputs.end());
  const auto find = how.is_streaming ? reduce::find_streaming_kernel : reduce::find_kernel;
  find(DType::f32, ReduceOp::Kind::sum)({.data = sources.data(), .count = slices},
                                        {.data = outputs.data(), .count = slices}, elements, 1);
}

class Rank {
 public:
  Rank(int rank, int size)
      : cpu_(cpu_of(rank, size)), group_(shm_group(rank, size)), shared_(group_->allocate(total_bytes)) {}

  Interval answer(const Question& question) {
    // Each rank writes its memory just before, as a program would. Otherwise a rank might find the others' slices,
    // which it wrote the last time, in its own cache.
    const bool is_walk = question.figure != all_reduce;
    const auto data = is_walk ? own_.floats() : shared_.as<float>();
    std::fill(data.begin(), data.end(), 1.0F);
    group_->barrier();
    if (is_walk) return timed([&] { walk(data, walks[question.figure], group_->size()); });
    const auto interval = timed([&] { group_->all_reduce(data); });
    const auto expected = static_cast<float>(group_->size());
    if (data.front() != expected || data.back() != expected) throw std::runtime_error("all_reduce: a wrong result");
    return interval;
  }

 private:
  /// As launchers do where there is a core for each rank: two ranks on one core would share its bandwidth.
  static std::unique_ptr<OnCpu> cpu_of(int rank, int size) {
    const auto cpus = OnCpu::allowed();
    if (cpus.size() < static_cast<std::size_t>(size)) return nullptr;
    return std::make_unique<OnCpu>(cpus[static_cast<std::size_t>(rank)]);
  }

  std::unique_ptr<OnCpu> cpu_;
  ProcessGroupPtr group_;
  GroupMemory shared_;
  OwnMemory own_;
};

void measure_ranks(int size, int rounds, Report& report) {
  ShmRanks<Rank, Question> ranks(size);
  // The span, not the slowest: a rank that starts late holds up an all_reduce, so it has to count in the floor too.
  const auto time = [&](std::size_t figure) { return span(ranks.ask({figure})) * 1e3; };
  take_turns(figures, 1, time);  // maps and faults in the memory
  const auto times = take_turns(figures, rounds, time);

  // The fastest round is printed as well: where it is far from the median, other programs used the cores meanwhile.
  const auto print = [&](std::string_view name, std::size_t figure) {
    const double taken = median(times[figure]);
    fmt::print("  {:<40} {:>8.2f} ms = {:>5.1f} GB/s; fastest round {:.2f} ms\n", name, taken,
               2e-6 * static_cast<double>(total_bytes) * size / taken,
               *std::min_element(times[figure].begin(), times[figure].end()));
  };
  const std::size_t mib = total_bytes >> 20U;
  fmt::print("\nThe floor of a {} MiB all_reduce, {} ranks: each reads and writes {} x {:.1f} MiB, together {} MiB\n",
             mib, size, size, static_cast<double>(mib) / size, 2 * mib * static_cast<std::size_t>(size));
  std::size_t fastest = 0;
  for (std::size_t i = 0; i < walks.size(); ++i) {
    if (median(times[i]) < median(times[fastest])) fastest = i;
    print(walks[i].name, i);
  }
  print("all_reduce", all_reduce);

  // The ratio is the floor's share of our time.
  report.add(compared(fmt::format("{} ranks", size), "ms", times[all_reduce], times[fastest], "floor",
                      at_least(0.6, static_cast<unsigned>(size))));
}

}  // namespace

void add_bandwidth(Program& program) {
  const auto sizes =
      program.list("--bandwidth-ranks", {2, 8}, "Sizes of the groups whose all_reduce is held to the floor");
  program.part("bandwidth", [=, &program](Report& report) {
    for (const int size : *sizes) measure_ranks(size, program.rounds(11), report);
    report.print("64 MiB all_reduce on memory of the group (ratio: share of the floor)");
  });
}

}  // namespace cohort::benchmarks

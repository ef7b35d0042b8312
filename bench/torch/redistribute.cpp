// SPDX-License-Identifier: BSD-3-Clause
//
// What redistributing a tensor costs beside the collective that it needs and, where the parts are not consecutive in
// memory, one copy that puts them in order.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <cohort/torch/mesh.h>
#include <cohort/torch/tensor.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "measure/interleaved.h"
#include "program.h"
#include "servers.h"
#include "torch/dtensor/distribute.h"
#include "torch/dtensor/redistribute_local.h"

namespace cohort::benchmarks {

namespace {

using dtensor::Layout;

enum class Way { bare, redistribute };

struct Question {
  std::size_t transition = 0;
  std::int64_t kibibytes = 1024;  ///< of the whole tensor
  Way way = Way::bare;
  int repeats = 1;
};

struct Named {
  const char* name;
  Placement from;
  Placement to;
};
const std::array transitions{
    Named{"S(0) -> R, all-gather", Shard(0), Replicate()},
    Named{"S(1) -> R, all-gather and copy", Shard(1), Replicate()},
    Named{"S(0) -> S(1), copy and all-to-all", Shard(0), Shard(1)},
    Named{"S(1) -> S(0), all-to-all and copy", Shard(1), Shard(0)},
    Named{"P -> R, copy and all-reduce", Partial(), Replicate()},
    Named{"P -> S(0), reduce-scatter", Partial(), Shard(0)},
    Named{"P -> S(1), copy and reduce-scatter", Partial(), Shard(1)},
    Named{"R -> S(1), copy", Replicate(), Shard(1)},
};

constexpr std::int64_t columns = 1024;

class Rank {
 public:
  Rank(int rank, int size) : group_(shm_group(rank, size)), mesh_(DeviceMesh::from_group(group_, "cpu")) {
    at::set_num_threads(1);
  }

  Interval answer(const Question& question) {
    const auto& [name, from, to] = transitions.at(question.transition);
    prepare(question);
    group_->barrier();
    at::Tensor result;
    const auto interval = timed([&] {
      for (int i = 0; i < question.repeats; ++i) {
        result = question.way == Way::bare ? bare(from, to) : redistribute(from, to);
      }
    });
    // Each way keeps its last result, so that both find the heap alike.
    results_.at(static_cast<std::size_t>(question.way)) = result;
    if (results_[0].defined() && results_[1].defined() && !at::equal(results_[0], results_[1])) {
      throw std::runtime_error(std::string(name) + ": the two ways differ");
    }
    return interval;
  }

 private:
  void prepare(const Question& question) {
    if (question.transition == prepared_.transition && question.kibibytes == prepared_.kibibytes && part_.defined())
      return;
    prepared_ = question;
    results_ = {};
    const auto rows = question.kibibytes * 1024 / columns / 4;
    sizes_ = {rows, columns};
    const auto whole = at::arange(rows * columns, at::kFloat).remainder(1009).view(sizes_);
    const auto& from = transitions.at(question.transition).from;
    part_ = from.is_partial() ? whole : dtensor::distribute_local(whole, {mesh_, {from}}, std::nullopt);
  }

  at::Tensor redistribute(const Placement& from, const Placement& to) const {
    return dtensor::redistribute_local(part_, sizes_, {mesh_, {from}}, {mesh_, {to}});
  }

  /// By hand, for sizes that the ranks divide.
  at::Tensor bare(const Placement& from, const Placement& to) const {
    const std::int64_t ranks = group_->size();
    const auto rows = sizes_[0];
    if (from.is_replicate()) {
      const auto width = columns / ranks;
      return part_.narrow(1, group_->rank() * width, width).contiguous();
    }
    if (from.is_partial() && to.is_replicate()) {
      auto sum = part_.clone();
      group_->all_reduce(buffer_of(sum));
      return sum;
    }
    if (from.is_partial()) {
      const auto parts =
          to.is_shard(0) ? part_ : part_.view({rows, ranks, columns / ranks}).transpose(0, 1).contiguous();
      auto mine = at::empty(to.is_shard(0) ? std::vector<std::int64_t>{rows / ranks, columns}
                                           : std::vector<std::int64_t>{rows, columns / ranks},
                            part_.options());
      group_->reduce_scatter(buffer_of(mine), const_buffer_of(parts));
      return mine;
    }
    if (to.is_replicate()) {
      auto all = at::empty({ranks, part_.size(0), part_.size(1)}, part_.options());
      group_->all_gather(buffer_of(all), const_buffer_of(part_));
      return from.is_shard(0) ? all.view(sizes_) : all.transpose(0, 1).contiguous().view(sizes_);
    }
    if (from.is_shard(0)) {
      const auto parts = part_.view({rows / ranks, ranks, columns / ranks}).transpose(0, 1).contiguous();
      auto mine = at::empty({rows, columns / ranks}, part_.options());
      group_->all_to_all(buffer_of(mine), const_buffer_of(parts));
      return mine;
    }
    auto mine = at::empty({ranks, rows / ranks, columns / ranks}, part_.options());
    group_->all_to_all(buffer_of(mine), const_buffer_of(part_));
    return mine.transpose(0, 1).contiguous().view({rows / ranks, columns});
  }

  ProcessGroupPtr group_;
  DeviceMesh mesh_;
  Question prepared_;
  std::vector<std::int64_t> sizes_;
  at::Tensor part_;
  std::array<at::Tensor, 2> results_;
};

void measure(int ranks, int rounds, const std::vector<int>& sizes, Report& report) {
  constexpr std::int64_t kibibytes_in_a_round = 64 * 1024;
  ShmRanks<Rank, Question> processes(ranks);
  for (const auto kibibytes : sizes) {
    for (std::size_t transition = 0; transition < transitions.size(); ++transition) {
      const auto repeats = static_cast<int>(std::clamp<std::int64_t>(kibibytes_in_a_round / kibibytes, 1, 64));
      const auto ask = [&](std::size_t way) {
        return span(processes.ask({transition, kibibytes, static_cast<Way>(way), repeats})) * 1e6 / repeats;
      };
      ask(0);
      ask(1);
      const auto times = take_turns(2, rounds, ask);
      report.add(compared(fmt::format("{} KiB, {}", kibibytes, transitions.at(transition).name), "us", times[1],
                          times[0], "bare", at_most(1.10)));
    }
  }
  report.print(fmt::format("redistribute on {} ranks, against the bare collective and copy", ranks));
}

}  // namespace

}  // namespace cohort::benchmarks

int main(int argc, char** argv) {
  using namespace cohort::benchmarks;
  Program program("Measures redistribute against the collective that it needs.", 15);
  const auto ranks = program.list("--ranks", {2, 4}, "Numbers of ranks");
  const auto sizes =
      program.list("--kibibytes", {1024, 16384, 65536}, "Sizes of the whole tensor; the bar is for 1024 and more");
  program.part("redistribute", [&](Report& report) {
    for (const auto each : *ranks) measure(each, program.rounds(), *sizes, report);
  });
  return program.run(argc, argv);
}

// SPDX-License-Identifier: BSD-3-Clause
//
// What backend mpi adds to MPI: each collective through Cohort and as MPI's own non-blocking call followed by MPI_Test
// in a loop, in alternating rounds of one run.
//
//   mpirun.openmpi -n 2 bench/engines/mpi_overhead.openmpi [ROUNDS]
//
// The bars are those of overhead_row (tools/cohort/measure/interleaved.h).
#include <cohort/cohort.h>
#include <mpi.h>

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include "core/parse.h"
#include "measure/interleaved.h"
#include "measure/sizes.h"

namespace {

using namespace cohort;
using Clock = std::chrono::steady_clock;

struct Operation {
  std::string name{};
  std::function<void(std::size_t floats)> cohort{};
  std::function<void(std::size_t floats)> raw{};
  bool has_size = true;
};

std::string library_version() {
  std::array<char, MPI_MAX_LIBRARY_VERSION_STRING> text{};
  int length = 0;
  MPI_Get_library_version(text.data(), &length);
  const std::string version(text.data(), static_cast<std::size_t>(length));
  return version.substr(0, version.find('\n'));
}

class Overhead {
 public:
  Overhead(ProcessGroup& group, int rounds) : group_(group), rounds_(rounds) {
    MPI_Comm_dup(MPI_COMM_WORLD, &comm_);
    MPI_Comm_size(comm_, &size_);
    whole_.resize(most_floats * static_cast<std::size_t>(size_));
  }
  ~Overhead() { MPI_Comm_free(&comm_); }
  Overhead(const Overhead&) = delete;
  Overhead& operator=(const Overhead&) = delete;

  void run() {
    const auto finish = [](MPI_Request request) {
      for (int is_done = 0; is_done == 0;) MPI_Test(&request, &is_done, MPI_STATUS_IGNORE);
    };
    const auto part = [this](std::size_t floats) { return std::span(part_).first(floats); };
    const auto whole = [this](std::size_t floats) {
      return std::span(whole_).first(floats * static_cast<std::size_t>(size_));
    };
    const std::vector<Operation> operations{
        {.name = "all_reduce",
         .cohort = [=, this](std::size_t n) { group_.all_reduce(part(n)); },
         .raw =
             [=, this](std::size_t n) {
               MPI_Request request = MPI_REQUEST_NULL;
               MPI_Iallreduce(MPI_IN_PLACE, part_.data(), static_cast<int>(n), MPI_FLOAT, MPI_SUM, comm_, &request);
               finish(request);
             }},
        {.name = "broadcast",
         .cohort = [=, this](std::size_t n) { group_.broadcast(part(n)); },
         .raw =
             [=, this](std::size_t n) {
               MPI_Request request = MPI_REQUEST_NULL;
               MPI_Ibcast(part_.data(), static_cast<int>(n), MPI_FLOAT, 0, comm_, &request);
               finish(request);
             }},
        {.name = "all_gather",
         .cohort = [=, this](std::size_t n) { group_.all_gather(whole(n), part(n)); },
         .raw =
             [=, this](std::size_t n) {
               MPI_Request request = MPI_REQUEST_NULL;
               const auto count = static_cast<int>(n);
               MPI_Iallgather(part_.data(), count, MPI_FLOAT, whole_.data(), count, MPI_FLOAT, comm_, &request);
               finish(request);
             }},
        {.name = "barrier",
         .cohort = [=, this](std::size_t) { group_.barrier(); },
         .raw =
             [=, this](std::size_t) {
               MPI_Request request = MPI_REQUEST_NULL;
               MPI_Ibarrier(comm_, &request);
               finish(request);
             },
         .has_size = false}};
    for (const auto& operation : operations) {
      for (const std::size_t bytes : {4UL, 1UL << 10U, 16UL << 10U, 64UL << 10U, 1UL << 20U, 16UL << 20U}) {
        measure(operation, operation.has_size ? bytes : 0);
        if (!operation.has_size) break;
      }
    }
    if (group_.rank() == 0) report_.print(fmt::format("{}, {} ranks, times on rank 0", library_version(), size_));
  }

 private:
  static constexpr std::size_t most_floats = (16U << 20U) / sizeof(float);

  /// Microseconds for one, on this rank.
  double time(const std::function<void(std::size_t)>& call, std::size_t floats, int repeats) {
    MPI_Barrier(comm_);
    const auto begin = Clock::now();
    for (int i = 0; i < repeats; ++i) call(floats);
    return std::chrono::duration<double, std::micro>(Clock::now() - begin).count() / repeats;
  }

  void measure(const Operation& operation, std::size_t bytes) {
    const auto floats = bytes / sizeof(float);
    std::fill(part_.begin(), part_.end(), 0.0F);
    const auto found = bench::interleave(
        [&](int which, int repeats) { return time(which == 0 ? operation.raw : operation.cohort, floats, repeats); },
        rounds_,
        [&](int repeats) {
          MPI_Bcast(&repeats, 1, MPI_INT, 0, comm_);
          return repeats;
        });
    report_.add(
        bench::overhead_row(fmt::format("{}, {}", operation.name, bench::format_size(bytes)), bytes, found, "MPI"));
  }

  ProcessGroup& group_;
  const int rounds_;
  MPI_Comm comm_ = MPI_COMM_NULL;
  int size_ = 1;
  std::vector<float> part_ = std::vector<float>(most_floats);
  std::vector<float> whole_ = std::vector<float>();
  bench::Report report_;
};

}  // namespace

int main(int argc, char** argv) {
  const auto group = new_group("mpi", std::chrono::seconds(60), "cpu");
  Overhead(*group, std::max(1, parse_integer<int>(argc > 1 ? argv[1] : "201").value_or(201))).run();
  return 0;
}

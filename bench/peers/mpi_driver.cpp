// SPDX-License-Identifier: BSD-3-Clause
//
// An MPI library as a driver (tools/cohort/measure/driver.h); started by its mpirun, which passes standard input to
// rank 0.
//
//   mpirun -n RANKS mpi_driver [blocking|nonblocking|cohort]
//
// nonblocking: MPI's non-blocking calls, each followed by MPI_Test in a loop, which is what backend mpi does; cohort:
// that backend, on the same library.
#include <cohort/new_group.h>
#include <mpi.h>
#include <sys/prctl.h>

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <csignal>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>

#include "measure/driver.h"
#include "measure/group_system.h"

namespace {

using namespace cohort::measure;
using cohort::DType;

void check(int code) {
  if (code == MPI_SUCCESS) return;
  std::array<char, MPI_MAX_ERROR_STRING> text{};
  int length = 0;
  MPI_Error_string(code, text.data(), &length);
  throw std::runtime_error(std::string(text.data(), static_cast<std::size_t>(length)));
}

/// MPI_DATATYPE_NULL where MPI has none.
MPI_Datatype type_of(DType dtype) {
  static const std::map<DType, MPI_Datatype> types{
      {DType::f32, MPI_FLOAT},    {DType::f64, MPI_DOUBLE},  {DType::i8, MPI_INT8_T},   {DType::u8, MPI_UINT8_T},
      {DType::i16, MPI_INT16_T},  {DType::i32, MPI_INT32_T}, {DType::i64, MPI_INT64_T}, {DType::u16, MPI_UINT16_T},
      {DType::u32, MPI_UINT32_T}, {DType::u64, MPI_UINT64_T}};
  const auto found = types.find(dtype);
  return found == types.end() ? MPI_DATATYPE_NULL : found->second;
}

/// MPI_OP_NULL where MPI has none.
MPI_Op op_of(Reduction reduction) {
  static const std::map<Reduction, MPI_Op> ops{
      {Reduction::sum, MPI_SUM}, {Reduction::prod, MPI_PROD}, {Reduction::min, MPI_MIN}, {Reduction::max, MPI_MAX}};
  const auto found = ops.find(reduction);
  return found == ops.end() ? MPI_OP_NULL : found->second;
}

class MpiSystem final : public System {
 public:
  explicit MpiSystem(bool is_blocking) : is_blocking_(is_blocking) {
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank_);
    MPI_Comm_size(MPI_COMM_WORLD, &size_);
  }

  int rank() const override { return rank_; }
  int size() const override { return size_; }

  std::optional<std::string> refusal(const Command& command) const override {
    if (type_of(command.dtype) == MPI_DATATYPE_NULL) return fmt::format("MPI has no {}", to_string(command.dtype));
    if (op_of(command.reduction) == MPI_OP_NULL) return fmt::format("MPI has no {}", to_string(command.reduction));
    if (!command.blocking) return "only its blocking operations are measured";
    if (command.operation == Operation::reduce_scatter && command.in_place) {
      return "MPI puts the result of a reduce_scatter in place elsewhere";
    }
    constexpr std::array by_testing{Operation::all_reduce, Operation::broadcast, Operation::all_gather,
                                    Operation::barrier};
    if (!is_blocking_ && std::count(by_testing.begin(), by_testing.end(), command.operation) == 0) {
      return "its non-blocking form is not measured";
    }
    return std::nullopt;
  }

  void prepare(const Job& job) override {
    type_ = type_of(job.command.dtype);
    op_ = op_of(job.command.reduction);
  }

  void run(const Job& job) override {
    const auto& c = job.command;
    const auto count = static_cast<int>(job.count);
    MPI_Datatype const type = type_;
    MPI_Op const op = op_;
    const auto world = MPI_COMM_WORLD;
    const void* const input = c.in_place ? MPI_IN_PLACE : job.input;
    if (!is_blocking_) return run_by_testing(job, input, count, type, op);
    switch (c.operation) {
      case Operation::all_reduce:
        return check(MPI_Allreduce(input, job.output, count, type, op, world));
      case Operation::broadcast:
        return check(MPI_Bcast(job.output, count, type, c.root, world));
      case Operation::reduce:
        // Only the root may say "in place", and only its output counts.
        return check(MPI_Reduce(rank_ == c.root ? input : job.input, job.output, count, type, op, c.root, world));
      case Operation::all_gather:
        return check(MPI_Allgather(input, count, type, job.output, count, type, world));
      case Operation::reduce_scatter:
        return check(MPI_Reduce_scatter_block(job.input, job.output, count, type, op, world));
      case Operation::all_to_all:
        return check(MPI_Alltoall(job.input, count, type, job.output, count, type, world));
      case Operation::barrier:
        return check(MPI_Barrier(world));
      case Operation::send_recv:
        return ping_pong(
            [&](int other) { check(MPI_Send(job.input, count, type, other, 0, world)); },
            [&](int other) { check(MPI_Recv(job.output, count, type, other, 0, world, MPI_STATUS_IGNORE)); });
    }
  }

  void barrier() override { check(MPI_Barrier(MPI_COMM_WORLD)); }
  void max_over_ranks(std::span<double> values) override {
    check(MPI_Allreduce(MPI_IN_PLACE, values.data(), static_cast<int>(values.size()), MPI_DOUBLE, MPI_MAX,
                        MPI_COMM_WORLD));
  }

 private:
  static void run_by_testing(const Job& job, const void* input, int count, MPI_Datatype type, MPI_Op op) {
    MPI_Request request = MPI_REQUEST_NULL;
    const auto world = MPI_COMM_WORLD;
    switch (job.command.operation) {
      case Operation::all_reduce:
        check(MPI_Iallreduce(input, job.output, count, type, op, world, &request));
        break;
      case Operation::broadcast:
        check(MPI_Ibcast(job.output, count, type, job.command.root, world, &request));
        break;
      case Operation::all_gather:
        check(MPI_Iallgather(input, count, type, job.output, count, type, world, &request));
        break;
      default:
        check(MPI_Ibarrier(world, &request));
    }
    for (int is_done = 0; is_done == 0;) check(MPI_Test(&request, &is_done, MPI_STATUS_IGNORE));
  }

  bool is_blocking_;
  MPI_Datatype type_ = MPI_DATATYPE_NULL;
  MPI_Op op_ = MPI_OP_NULL;
  int rank_ = 0;
  int size_ = 1;
};

/// MPI waits by polling, so an idle rank looks for the next command only every millisecond.
class Commands {
 public:
  explicit Commands(int rank) : rank_(rank) {
    // A communicator of its own: otherwise measured operations would have to step over the waiting broadcast.
    MPI_Comm_dup(MPI_COMM_WORLD, &world_);
  }

  std::optional<std::string> next() {
    std::array<char, 1024> line{};
    if (rank_ == 0) {
      const auto read = reader_.next();
      // The first byte says whether there is one.
      if (read) fmt::format_to_n(line.data(), line.size() - 1, "+{}", *read);
    }
    MPI_Request request = MPI_REQUEST_NULL;
    check(MPI_Ibcast(line.data(), static_cast<int>(line.size()), MPI_CHAR, 0, world_, &request));
    for (int done = 0; done == 0;) {
      check(MPI_Test(&request, &done, MPI_STATUS_IGNORE));
      if (done == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    if (line[0] != '+') return std::nullopt;
    return std::string(line.data() + 1);
  }

 private:
  int rank_;
  MPI_Comm world_ = MPI_COMM_NULL;
  LineReader reader_{0};
};

}  // namespace

int main(int argc, char** argv) {
  // mpirun puts ranks into process groups of their own: killing mpirun's would miss them.
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  const std::string how = argc > 1 ? argv[1] : "blocking";
  cohort::ProcessGroupPtr group;
  try {
    std::unique_ptr<System> system;
    if (how == "cohort") {
      group = cohort::new_group("mpi", std::chrono::minutes(1), "cpu");  // also calls MPI_Init
      system = std::make_unique<GroupSystem>(group, MemoryKind::ordinary);
    } else {
      MPI_Init(&argc, &argv);
      system = std::make_unique<MpiSystem>(how == "blocking");
    }
    Commands commands(system->rank());
    serve(*system, [&] { return commands.next(); });
  } catch (const std::exception& e) {
    fmt::print(stderr, "{}\n", e.what());
    int is_initialized = 0;
    MPI_Initialized(&is_initialized);
    if (is_initialized != 0) MPI_Abort(MPI_COMM_WORLD, 1);
    return 1;
  }
  if (!group) MPI_Finalize();
  return 0;
}

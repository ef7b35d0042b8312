// SPDX-License-Identifier: BSD-3-Clause
//
// An MPI library as a driver (tools/cohort/measure/driver.h); started by its mpirun, which passes standard input to
// rank 0.
#include <fmt/format.h>
#include <mpi.h>
#include <sys/prctl.h>

#include <array>
#include <chrono>
#include <csignal>
#include <stdexcept>
#include <string>
#include <thread>

#include "measure/driver.h"

namespace {

using namespace cohort::bench;
using cohort::DType;

void check(int code) {
  if (code == MPI_SUCCESS) return;
  std::array<char, MPI_MAX_ERROR_STRING> text{};
  int length = 0;
  MPI_Error_string(code, text.data(), &length);
  throw std::runtime_error(std::string(text.data(), static_cast<std::size_t>(length)));
}

MPI_Datatype type_of(DType dtype) {
  switch (dtype) {
    case DType::f32:
      return MPI_FLOAT;
    case DType::f64:
      return MPI_DOUBLE;
    case DType::i8:
      return MPI_INT8_T;
    case DType::u8:
      return MPI_UINT8_T;
    case DType::i16:
      return MPI_INT16_T;
    case DType::i32:
      return MPI_INT32_T;
    case DType::i64:
      return MPI_INT64_T;
    case DType::u16:
      return MPI_UINT16_T;
    case DType::u32:
      return MPI_UINT32_T;
    case DType::u64:
      return MPI_UINT64_T;
    default:
      return MPI_DATATYPE_NULL;
  }
}

MPI_Op op_of(Reduction reduction) {
  switch (reduction) {
    case Reduction::sum:
      return MPI_SUM;
    case Reduction::prod:
      return MPI_PROD;
    case Reduction::min:
      return MPI_MIN;
    case Reduction::max:
      return MPI_MAX;
    case Reduction::avg:
      break;
  }
  return MPI_OP_NULL;
}

class MpiSystem final : public System {
 public:
  MpiSystem() {
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
    return std::nullopt;
  }

  void* memory(std::size_t number, std::size_t bytes) override { return memory_.at(number).get(bytes); }
  void release() override {
    for (auto& memory : memory_) memory.release();
  }

  void run(const Job& job) override {
    const auto& c = job.command;
    const auto count = static_cast<int>(job.count);
    MPI_Datatype const type = type_of(c.dtype);
    MPI_Op const op = op_of(c.reduction);
    const auto world = MPI_COMM_WORLD;
    const void* const input = c.in_place ? MPI_IN_PLACE : job.input;
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
        return ping_pong(job, count, type);
    }
  }

  void barrier() override { check(MPI_Barrier(MPI_COMM_WORLD)); }
  void max_over_ranks(std::span<double> values) override {
    check(MPI_Allreduce(MPI_IN_PLACE, values.data(), static_cast<int>(values.size()), MPI_DOUBLE, MPI_MAX,
                        MPI_COMM_WORLD));
  }

 private:
  void ping_pong(const Job& job, int count, MPI_Datatype type) const {
    const auto send = [&](int to) { check(MPI_Send(job.input, count, type, to, 0, MPI_COMM_WORLD)); };
    const auto receive = [&](int from) {
      check(MPI_Recv(job.output, count, type, from, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE));
    };
    if (rank_ == 0) {
      send(1);
      receive(1);
    } else if (rank_ == 1) {
      receive(0);
      send(0);
    }
  }

  int rank_ = 0;
  int size_ = 1;
  std::array<OrdinaryMemory, 2> memory_;
};

/// MPI waits by polling, so an idle rank looks for the next command only every millisecond.
class Commands {
 public:
  explicit Commands(int rank) : rank_(rank) {
    // A communicator of its own: otherwise measured operations would have to step over the waiting broadcast.
    MPI_Comm_dup(MPI_COMM_WORLD, &world_);
  }

  std::optional<std::string> next() {
    std::array<char, 256> line{};
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
  MPI_Init(&argc, &argv);
  int code = 0;
  try {
    MpiSystem system;
    Commands commands(system.rank());
    serve(system, [&] { return commands.next(); });
  } catch (const std::exception& e) {
    fmt::print(stderr, "{}\n", e.what());
    MPI_Abort(MPI_COMM_WORLD, 1);
    code = 1;
  }
  MPI_Finalize();
  return code;
}

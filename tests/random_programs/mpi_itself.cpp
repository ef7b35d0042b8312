// SPDX-License-Identifier: BSD-3-Clause
//
// Runs the steps of random programs that MPI has calls for on MPI itself, without the library, and compares them with
// the serial reference. So what every backend is compared with is what MPI computes.
//
//   mpirun.openmpi -n 3 random_programs_on.openmpi --seed 1 --programs 100
#include <fmt/format.h>
#include <mpi.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdint>
#include <iostream>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "random_programs/generate.h"
#include "random_programs/program.h"
#include "random_programs/reference.h"
#include "random_programs/shrink.h"

namespace cohort::random_programs {

namespace {

using Outputs = std::vector<ByteVector>;

std::size_t at(int rank) {
  return static_cast<std::size_t>(rank);
}
int length(std::size_t count) {
  return static_cast<int>(count);
}

/// MPI's own type, if it has one on which its operations mean what the library's mean (docs/engines-mpi.md).
std::optional<MPI_Datatype> type_of(const Step& step) {
  switch (step.dtype) {
    case DType::f32:
      return MPI_FLOAT;
    case DType::f64:
      return MPI_DOUBLE;
    case DType::i32:
      return MPI_INT32_T;
    case DType::i64:
      return MPI_INT64_T;
    case DType::complex64:
      return MPI_C_FLOAT_COMPLEX;
    case DType::complex128:
      return MPI_C_DOUBLE_COMPLEX;
    default:
      return {};
  }
}
std::optional<MPI_Op> op_of(const Step& step) {
  switch (step.reduction) {
    case ReduceOp::Kind::sum:
      return MPI_SUM;
    case ReduceOp::Kind::product:
      return MPI_PROD;
    case ReduceOp::Kind::min:
      return MPI_MIN;
    case ReduceOp::Kind::max:
      return MPI_MAX;
    case ReduceOp::Kind::band:
      return MPI_BAND;
    case ReduceOp::Kind::bor:
      return MPI_BOR;
    case ReduceOp::Kind::bxor:
      return MPI_BXOR;
    default:
      return {};
  }
}

/// One step on one communicator.
class OnMpi {
 public:
  OnMpi(const Step& step, MPI_Comm comm) : step_(step), comm_(comm) {
    MPI_Comm_size(comm, &n_);
    MPI_Comm_rank(comm, &rank_);
    shape_ = shape_of(step, n_, rank_);
    for (std::size_t i = 0; i < shape_.inputs.size(); ++i) in_.push_back(contents(i, shape_.inputs[i]));
    for (const auto count : shape_.outputs) out_.emplace_back(count * size());
    type_ = type_of(step);
    op_ = op_of(step);
  }

  /// What this rank got, or nullopt if MPI has no such call.
  std::optional<Outputs> run() {
    if (is_reduction(step_.kind)) return type_ && op_ && reduce() ? std::optional(out_) : std::nullopt;
    return move() ? std::optional(out_) : std::nullopt;
  }
  std::string difference_from_reference() {
    const auto got = run();
    if (!got) return {};
    ++compared;
    const auto wanted = expected(step_, n_, rank_, Values::exact);
    for (std::size_t i = 0; i < wanted.size(); ++i) {
      const auto text = difference(step_.dtype, got->at(i), wanted[i]);
      if (!text.empty()) return fmt::format("step {}, {}, output {}: {}", step_.number, to_string(step_.kind), i, text);
    }
    return {};
  }

  static inline int compared = 0;

 private:
  std::size_t size() const { return size_of(step_.dtype); }
  ByteVector contents(std::size_t piece, std::size_t count) const {
    return random_programs::contents(step_, rank_, piece, count, Values::exact);
  }

  bool reduce() {
    const int root = root_of(step_, n_);
    switch (step_.kind) {
      case Kind::all_reduce:
      case Kind::all_reduce_coalesced:
        for (std::size_t j = 0; j < out_.size(); ++j) {
          out_[j] = contents(j, shape_.outputs[j]);
          MPI_Allreduce(MPI_IN_PLACE, out_[j].data(), length(shape_.outputs[j]), *type_, *op_, comm_);
        }
        return true;
      case Kind::reduce: {
        const auto mine = contents(0, step_.count);
        out_[0] = mine;
        MPI_Reduce(mine.data(), rank_ == root ? out_[0].data() : nullptr, length(step_.count), *type_, *op_, root,
                   comm_);
        return true;
      }
      case Kind::reduce_scatter:
      case Kind::reduce_scatter_coalesced:
        for (std::size_t j = 0; j < out_.size(); ++j) {
          MPI_Reduce_scatter_block(in_[j].data(), out_[j].data(), length(shape_.outputs[j]), *type_, *op_, comm_);
        }
        return true;
      case Kind::reduce_scatter_list: {
        std::vector<int> counts;
        for (const auto count : shape_.inputs) counts.push_back(length(count));
        MPI_Reduce_scatter(joined(in_).data(), out_[0].data(), counts.data(), *type_, *op_, comm_);
        return true;
      }
      default:
        return false;
    }
  }

  static ByteVector joined(const Outputs& pieces) {
    ByteVector all;
    for (const auto& each : pieces) all.insert(all.end(), each.begin(), each.end());
    return all;
  }
  /// Divides what one call received into the outputs.
  void divide(const ByteVector& all) {
    auto from = all.begin();
    for (auto& each : out_) {
      const auto end = from + static_cast<std::ptrdiff_t>(each.size());
      each.assign(from, end);
      from = end;
    }
  }
  static std::vector<int> offsets(const std::vector<int>& counts) {
    std::vector<int> all;
    int sum = 0;
    for (const auto each : counts) {
      all.push_back(sum);
      sum += each;
    }
    return all;
  }

  void all_gather(std::size_t input, ByteVector& everything, const std::vector<int>& counts) {
    MPI_Allgatherv(in_[input].data(), length(in_[input].size()), MPI_BYTE, everything.data(), counts.data(),
                   offsets(counts).data(), MPI_BYTE, comm_);
  }

  void all_to_all() {
    const bool is_equal = step_.kind == Kind::all_to_all;
    std::vector<int> sent;
    std::vector<int> received;
    for (int peer = 0; peer < n_; ++peer) {
      sent.push_back(length((is_equal ? step_.count : cell_of(step_, rank_, peer)) * size()));
      received.push_back(length((is_equal ? step_.count : cell_of(step_, peer, rank_)) * size()));
    }
    auto all = joined(out_);
    MPI_Alltoallv(joined(in_).data(), sent.data(), offsets(sent).data(), MPI_BYTE, all.data(), received.data(),
                  offsets(received).data(), MPI_BYTE, comm_);
    divide(all);
  }

  bool move() {
    const int root = root_of(step_, n_);
    const int bytes = length(step_.count * size());
    switch (step_.kind) {
      case Kind::broadcast:
        out_[0] = contents(0, step_.count);
        MPI_Bcast(out_[0].data(), bytes, MPI_BYTE, root, comm_);
        return true;
      case Kind::all_gather:
      case Kind::all_gather_coalesced:
        for (std::size_t j = 0; j < in_.size(); ++j) {
          all_gather(j, out_[j], std::vector<int>(at(n_), length(in_[j].size())));
        }
        return true;
      case Kind::all_gather_list: {
        std::vector<int> counts;
        for (const auto& each : out_) counts.push_back(length(each.size()));
        auto all = joined(out_);
        all_gather(0, all, counts);
        divide(all);
        return true;
      }
      case Kind::gather: {
        auto all = joined(out_);
        MPI_Gather(in_[0].data(), bytes, MPI_BYTE, all.data(), bytes, MPI_BYTE, root, comm_);
        divide(all);
        return true;
      }
      case Kind::scatter:
        MPI_Scatter(joined(in_).data(), bytes, MPI_BYTE, out_[0].data(), bytes, MPI_BYTE, root, comm_);
        return true;
      case Kind::all_to_all:
      case Kind::all_to_all_uneven:
      case Kind::all_to_all_list:
        all_to_all();
        return true;
      case Kind::exchange: {
        const int shift = shift_of(step_, n_);
        MPI_Sendrecv(in_[0].data(), length(in_[0].size()), MPI_BYTE, (rank_ + shift) % n_, tag_of(step_),
                     out_[0].data(), length(out_[0].size()), MPI_BYTE, (rank_ + n_ - shift) % n_, tag_of(step_), comm_,
                     MPI_STATUS_IGNORE);
        return true;
      }
      default:
        return false;
    }
  }

  const Step& step_;
  MPI_Comm comm_;
  int n_ = 0;
  int rank_ = 0;
  Shape shape_;
  Outputs in_;
  Outputs out_;
  std::optional<MPI_Datatype> type_;
  std::optional<MPI_Op> op_;
};

/// The first difference on this rank, empty if there is none.
std::string run(const Program& program) {
  std::map<int, MPI_Comm> comms{{world, MPI_COMM_WORLD}};
  std::string failure;
  const auto perform = [&](const Step& step, MPI_Comm comm) {
    const auto text = OnMpi(step, comm).difference_from_reference();
    if (failure.empty()) failure = text;
  };
  for (const auto& step : program.steps) {
    const auto comm = comms.at(step.group);
    if (comm == MPI_COMM_NULL) {
      if (step.kind == Kind::split) comms[step.number] = MPI_COMM_NULL;
      continue;
    }
    if (step.kind == Kind::split) {
      int n = 0;
      int rank = 0;
      MPI_Comm_size(comm, &n);
      MPI_Comm_rank(comm, &rank);
      const auto members = split_of(step, n);
      const bool is_member = std::find(members.begin(), members.end(), rank) != members.end();
      MPI_Comm_split(comm, is_member ? 0 : MPI_UNDEFINED, rank, &comms[step.number]);
      continue;
    }
    if (step.kind == Kind::batch) {
      for (const auto& part : step.parts) perform(part, comm);
    } else {
      perform(step, comm);
    }
  }
  for (auto& [group, comm] : comms) {
    if (group != world && comm != MPI_COMM_NULL) MPI_Comm_free(&comm);
  }
  return failure;
}

int main(int argc, char** argv) {
  std::uint64_t seed = 1;
  std::uint64_t programs = 100;
  CLI::App app(
      "Compares the serial reference of random_programs with MPI. Every program has as many ranks as there are.");
  app.add_option("--seed", seed, "of the first program; the others follow")->capture_default_str();
  app.add_option("--programs", programs, "how many")->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  int rank = 0;
  int size = 0;
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  int failed = 0;
  for (auto each = seed; each < seed + programs; ++each) {
    const auto program = generate(each, "mpi");
    auto cut = whole(program);
    cut.size = size;
    const auto failure = run(with_cut(program, cut));
    if (failure.empty()) continue;
    ++failed;
    std::cerr << fmt::format("seed {}, rank {} of {}: {}\n", each, rank, size, failure);
  }
  if (rank == 0) std::cout << fmt::format("{} results of MPI compared, {} differ\n", OnMpi::compared, failed);
  MPI_Finalize();
  return failed == 0 ? 0 : 1;
}

}  // namespace

}  // namespace cohort::random_programs

int main(int argc, char** argv) {
  try {
    return cohort::random_programs::main(argc, argv);
  } catch (const std::exception& e) {
    std::cerr << e.what() << "\n";
    return 2;
  }
}

// SPDX-License-Identifier: BSD-3-Clause
#include "group/user_reduction.h"

#include <cohort/error.h>
#include <cohort/reduction.h>

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <exception>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/rank_index.h"
#include "group/mismatch.h"

namespace cohort {

namespace {

/// Divides memory into one slice of whole elements per rank, which differ by at most one element.
template <class Memory>
std::vector<Memory> slices_of(Memory whole, std::size_t element, std::size_t ranks) {
  const auto count = whole.size() / element;
  std::vector<Memory> slices;
  slices.reserve(ranks);
  for (std::size_t r = 0; r < ranks; ++r) {
    const auto first = count * r / ranks;
    slices.push_back(whole.subspan(first * element, (count * (r + 1) / ranks - first) * element));
  }
  return slices;
}

/// What all ranks have for this rank, in rank order, aligned for the function.
class Contributions {
 public:
  Contributions(const detail::UserReduction& user, std::size_t bytes_each, std::size_t ranks)
      : user_(user), bytes_(bytes_each), memory_(bytes_each * ranks + user.alignment) {
    void* start = memory_.data();
    auto room = memory_.size();
    auto* const aligned = static_cast<std::byte*>(std::align(user.alignment, bytes_ * ranks, start, room));
    for (std::size_t r = 0; r < ranks; ++r) pieces_.emplace_back(aligned + r * bytes_, bytes_);
  }

  std::span<const Bytes> pieces() const { return pieces_; }
  /// Combines all contributions into that of rank 0.
  Bytes combined() const {
    const auto elements = bytes_ / user_.element_bytes;
    for (std::size_t r = 1; r < pieces_.size() && elements > 0; ++r) {
      user_.combine(pieces_[0].data(), pieces_[r].data(), elements);
    }
    return pieces_[0];
  }

 private:
  const detail::UserReduction& user_;
  std::size_t bytes_;
  std::vector<std::byte> memory_;
  std::vector<Bytes> pieces_;
};

/// The outcome of the function on one rank, in a form that all ranks exchange. Long texts are cut.
struct Outcome {
  std::uint8_t has_failed = 0;
  std::array<char, 255> text{};

  static Outcome failure(std::string_view message) {
    Outcome outcome{.has_failed = 1};
    std::copy_n(message.begin(), std::min(message.size(), outcome.text.size() - 1), outcome.text.begin());
    return outcome;
  }
};

/// Returns when all ranks have called the function, and throws if it threw on any of them.
void agree_on_success(Backend& backend, const Operation& op, Call& call, const std::exception_ptr& own) {
  Outcome mine;
  try {
    if (own) std::rethrow_exception(own);
  } catch (const std::exception& e) {
    mine = Outcome::failure(e.what());
  } catch (...) {
    mine = Outcome::failure("something that is not a std::exception");
  }
  std::vector<Outcome> all(index_of(backend.size()));
  std::vector<Bytes> places;
  places.reserve(all.size());
  for (auto& each : all) places.push_back(std::as_writable_bytes(std::span(&each, 1)));
  backend.perform(Operation::all_gather(std::as_bytes(std::span(&mine, 1)), places), call);
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    if (all[rank].has_failed == 0) continue;
    throw DistributedError(
        fmt::format("the reduction \"{}\" failed on rank {}: {}", to_string(op.reduce), rank, all[rank].text.data()),
        {.op = std::string(to_string(call.op())),
         .sequence = call.sequence(),
         .rank = static_cast<int>(rank),
         .cause = own});
  }
}

/// Gives the slice that each rank holds to all ranks, or to the root alone.
void distribute(Backend& backend, const Operation& op, Call& call, ConstBytes mine, std::size_t element) {
  const auto ranks = index_of(backend.size());
  const auto outs = slices_of(op.out(), element, ranks);
  if (op.type == OpType::all_reduce) {
    backend.perform(Operation::all_gather(mine, outs), call);
    return;
  }
  std::vector<ConstBytes> sent(ranks);
  sent[index_of(op.root)] = mine;
  backend.perform(Operation::all_to_all(sent, outs), call);
}

}  // namespace

bool has_user_reductions(const Backend& backend) {
  const auto capabilities = backend.capabilities();
  return !backend.is_stream_ordered() && capabilities.supports(OpType::all_to_all) &&
         capabilities.supports(OpType::all_gather);
}

void check_user_reductions(const Backend& backend, const Operation& op) {
  if (has_user_reductions(backend)) return;
  throw NotSupportedError(
      fmt::format(
          "{}: the backend {} cannot reduce with a function of the program (\"{}\"); thread, shm, gloo, mpi and "
          "hybrid can, on host memory",
          to_string(op.type), backend.name(), to_string(op.reduce)),
      {.op = std::string(to_string(op.type))});
}

void reduce_with_user_function(Backend& backend, const Operation& op, Call& call) {
  const auto& user = *op.reduce.user();
  const auto ranks = index_of(backend.size());
  const auto own = index_of(backend.rank());
  const bool scatters = op.type == OpType::reduce_scatter || op.type == OpType::reduce_scatter_single;
  if (ranks == 1) {
    if (op.out().data() != op.in().data() && !op.out().empty()) {
      std::memmove(op.out().data(), op.in().data(), op.out().size());
    }
    return;
  }
  compare_on_all_ranks(backend, op, call);
  // Each rank combines one slice: of an all_reduce or reduce an equal share, of a reduce_scatter its own output.
  const auto ins =
      scatters ? std::vector<ConstBytes>(op.ins.begin(), op.ins.end()) : slices_of(op.in(), user.element_bytes, ranks);
  const Contributions contributions(user, ins[own].size(), ranks);
  backend.perform(Operation::all_to_all(ins, contributions.pieces()), call);
  ConstBytes result;
  std::exception_ptr failure;
  try {
    result = contributions.combined();
  } catch (...) {
    failure = std::current_exception();
  }
  agree_on_success(backend, op, call, failure);
  if (!scatters) return distribute(backend, op, call, result, user.element_bytes);
  if (!result.empty()) std::memcpy(op.out().data(), result.data(), result.size());
}

}  // namespace cohort

// SPDX-License-Identifier: BSD-3-Clause
#include "random_programs/execute.h"

#include <cohort/error.h>

#include <fmt/format.h>

#include <algorithm>
#include <list>
#include <map>
#include <random>
#include <stdexcept>
#include <utility>
#include <vector>

#include "random_programs/pieces.h"
#include "random_programs/reference.h"

namespace cohort::random_programs {

namespace {

/// The library promises rank order where capabilities() say so, and gloo for reduce_scatter (docs/backends.md).
Values values_for(const Step& step, const ProcessGroup& group) {
  if (!is_reduction(step.kind) || group.capabilities().deterministic_order) return Values::any;
  return group.name() == "gloo" && step.kind >= Kind::reduce_scatter ? Values::any : Values::exact;
}

ReduceOp op_of(const Step& step, int rank, Values values) {
  if (step.reduction == ReduceOp::Kind::premul_sum) return ReduceOp::premul_sum(factor_of(step, rank, values));
  return step.reduction;
}

/// Starts one step on a group, or adds it to a batch, which is why options are only given where they differ from the
/// defaults.
std::vector<Work> start(Operations& on, const ProcessGroup& group, const Step& step, const Pieces& at, Values values,
                        bool is_in_batch) {
  const int n = group.size();
  const int rank = group.rank();
  const int root = root_of(step, n);
  const auto op = op_of(step, rank, values);
  const bool async = step.is_async;
  const auto splits = [&](bool is_sent) {
    std::vector<std::int64_t> rows;
    for (int i = 0; i < n; ++i) {
      rows.push_back(static_cast<std::int64_t>(is_sent ? cell_of(step, rank, i) : cell_of(step, i, rank)));
    }
    return rows;
  };
  std::vector<Work> works;
  switch (step.kind) {
    case Kind::all_reduce:
      return {on.all_reduce(at.output(0), {.op = op, .async_op = async})};
    case Kind::all_reduce_list:
      return {on.all_reduce(at.outputs(), {.op = op, .async_op = async})};
    case Kind::all_reduce_coalesced:
      return {on.all_reduce_coalesced(at.outputs(), {.op = op, .async_op = async})};
    case Kind::reduce:
      return {on.reduce(at.output(0), {.root = root, .op = op, .async_op = async})};
    case Kind::broadcast:
      return {on.broadcast(at.output(0), {.root = root, .async_op = async})};
    case Kind::all_gather:
      return {on.all_gather(at.output(0), at.input(0), {.async_op = async})};
    case Kind::all_gather_list:
      return {on.all_gather(at.outputs(), at.input(0), {.async_op = async})};
    case Kind::all_gather_coalesced:
      return {on.all_gather_coalesced(at.outputs(), at.inputs(), {.async_op = async})};
    case Kind::all_gather_lists_coalesced: {
      const auto pieces = at.outputs();
      const auto each = pieces.size() / static_cast<std::size_t>(n);
      std::vector<BufferList> lists;
      for (std::size_t r = 0; r < static_cast<std::size_t>(n); ++r) {
        lists.emplace_back(std::vector<Buffer>(pieces.begin() + static_cast<std::ptrdiff_t>(r * each),
                                               pieces.begin() + static_cast<std::ptrdiff_t>((r + 1) * each)));
      }
      return {on.all_gather_coalesced(lists, at.inputs(), {.async_op = async})};
    }
    case Kind::gather:
      return {on.gather(at.outputs(), at.input(0), {.root = root, .async_op = async})};
    case Kind::scatter:
      return {on.scatter(at.output(0), at.inputs(), {.root = root, .async_op = async})};
    case Kind::reduce_scatter:
      return {on.reduce_scatter(at.output(0), at.input(0), {.op = op, .async_op = async})};
    case Kind::reduce_scatter_list:
      return {on.reduce_scatter(at.output(0), at.inputs(), {.op = op, .async_op = async})};
    case Kind::reduce_scatter_coalesced:
      return {on.reduce_scatter_coalesced(at.outputs(), at.inputs(), {.op = op, .async_op = async})};
    case Kind::all_to_all:
      return {on.all_to_all(at.output(0), at.input(0), {.async_op = async})};
    case Kind::all_to_all_uneven:
      return {on.all_to_all(at.output(0), at.input(0),
                            {.output_splits = splits(false), .input_splits = splits(true), .async_op = async})};
    case Kind::all_to_all_list:
      return {on.all_to_all(at.outputs(), at.inputs(), {.async_op = async})};
    case Kind::barrier:
      return {on.barrier({.async_op = async})};
    case Kind::message: {
      // Only a message to oneself has to be asynchronous.
      const int from = sender_of(step, n);
      const int to = receiver_of(step, n);
      const SendOptions how{.tag = tag_of(step), .async_op = !is_in_batch && (async || from == to)};
      if (rank == from) works.push_back(on.send(at.input(0), to, how));
      if (rank == to) works.push_back(on.recv(at.output(0), from, how));
      return works;
    }
    case Kind::exchange: {
      const int shift = shift_of(step, n);
      const SendOptions how{.tag = tag_of(step), .async_op = !is_in_batch};
      works.push_back(on.send(at.input(0), (rank + shift) % n, how));
      works.push_back(on.recv(at.output(0), (rank + n - shift) % n, how));
      return works;
    }
    case Kind::any_source: {
      const SendOptions how{.tag = tag_of(step), .async_op = async};
      if (rank != root) return {on.send(at.input(0), root, how)};
      for (std::size_t i = 0; i < at.output_count(); ++i) works.push_back(on.recv_any_source(at.output(i), how));
      return works;
    }
    default:
      throw std::logic_error(fmt::format("{} is no operation on buffers", to_string(step.kind)));
  }
}

/// Messages from any source come in any order: each is compared with what its sender sent.
std::string verify_sources(const Step& step, int n, int rank, const Pieces& at, const std::vector<Work>& works,
                           const std::vector<ByteVector>& sent) {
  const int root = root_of(step, n);
  if (rank != root) return at.verify({});
  std::vector<ByteVector> arrived;
  std::vector<int> sources;
  for (const auto& work : works) {
    const int source = work.source_rank();
    if (source < 0 || source >= n || source == root) return fmt::format("a message from rank {}", source);
    sources.push_back(source);
    arrived.push_back(sent[static_cast<std::size_t>(source > root ? source - 1 : source)]);
  }
  std::sort(sources.begin(), sources.end());
  if (std::adjacent_find(sources.begin(), sources.end()) != sources.end()) return "two messages from one rank";
  return at.verify(arrived);
}

class Execution {
 public:
  Execution(const Program& program, ProcessGroupPtr world_group, std::optional<Kind> tampered)
      : program_(program), tampered_(tampered) {
    groups_[world] = std::move(world_group);
  }

  std::optional<Failure> run() {
    try {
      for (const auto& step : program_.steps) {
        current_ = step.number;
        const auto group = groups_.find(step.group);
        if (group != groups_.end() && group->second) perform(step, group->second);
      }
      current_ = 0;
      wait_for(pending_.size(), mixed(program_.seed, 0xe2d));
      current_ = 0;
      check_sequence_number();
    } catch (const std::exception& e) {
      // An exception after wrong data is a consequence of it, if anything.
      if (!failure_) failure_ = Failure{"error", current_, e.what()};
    }
    return failure_;
  }

 private:
  struct Part {
    const Step* step;
    Values values;
    Pieces pieces;
    std::vector<Work> works;
  };
  /// Does not keep the group alive, so that a drop ends it while it has work to do.
  struct Pending {
    int step;
    int rank;
    int size;
    std::list<Part> parts;
    Work whole;  // of a batch
  };

  void wrong(const std::string& text) {
    if (!failure_) failure_ = Failure{"wrong data", current_, text};
  }

  void perform(const Step& step, const ProcessGroupPtr& group) {
    switch (step.kind) {
      case Kind::monitored_barrier:
        return group->monitored_barrier();
      case Kind::all_gather_bytes:
        return gather_bytes(step, *group);
      case Kind::broadcast_bytes: {
        const int root = root_of(step, group->size());
        if (group->broadcast_bytes(bytes_of(step, group->rank()), {.root = root}) != bytes_of(step, root)) {
          wrong("other bytes than the root's");
        }
        return;
      }
      case Kind::all_ok:
        return all_ok(step, *group);
      case Kind::split:
        groups_[step.number] = group->split_group(split_of(step, group->size()));
        return check_split(step, *group);
      case Kind::drop:
        groups_.erase(step.group);
        return;
      case Kind::wait:
        return wait_for((pending_.size() + 1) / 2, step.seed);
      default:
        return perform_on_buffers(step, group);
    }
  }

  void perform_on_buffers(const Step& step, const ProcessGroupPtr& group) {
    Pending pending{step.number, group->rank(), group->size(), {}, {}};
    if (step.kind == Kind::batch) {
      auto batch = group->batch();
      for (const auto& part : step.parts) add(pending, part, *group, batch);
      pending.whole = batch.run({.async_op = step.is_async});
    } else {
      add(pending, step, *group, *group);
    }
    if (!step.is_async) return finish(pending);
    pending_.push_back(std::move(pending));
  }

  static void add(Pending& pending, const Step& step, ProcessGroup& group, Operations& on) {
    const auto values = values_for(step, group);
    pending.parts.push_back({&step, values, Pieces(group, step, values), {}});
    auto& part = pending.parts.back();
    part.works = start(on, group, step, part.pieces, values, &on != &group);
  }

  void finish(const Pending& pending) {
    current_ = pending.step;
    pending.whole.wait();
    for (const auto& part : pending.parts) {
      for (const auto& work : part.works) work.wait();
      if (part.step->kind == tampered_ && pending.rank == pending.size - 1) part.pieces.tamper();
      const auto outputs = expected(*part.step, pending.size, pending.rank, part.values);
      const auto text = part.step->kind == Kind::any_source
                            ? verify_sources(*part.step, pending.size, pending.rank, part.pieces, part.works, outputs)
                            : part.pieces.verify(outputs);
      if (!text.empty()) wrong(fmt::format("{}: {}", to_string(part.step->kind), text));
    }
  }

  /// In an order that each rank shuffles for itself.
  void wait_for(std::size_t count, std::uint64_t seed) {
    std::mt19937_64 random(mixed(seed, static_cast<std::uint64_t>(groups_.at(world)->rank())));
    for (; count > 0; --count) {
      const auto chosen = std::next(pending_.begin(), static_cast<std::ptrdiff_t>(random() % pending_.size()));
      finish(*chosen);
      pending_.erase(chosen);
    }
  }

  void gather_bytes(const Step& step, ProcessGroup& group) {
    const auto all = group.all_gather_bytes(bytes_of(step, group.rank()));
    if (all.size() != static_cast<std::size_t>(group.size())) return wrong(fmt::format("{} texts", all.size()));
    for (int rank = 0; rank < group.size(); ++rank) {
      if (all[static_cast<std::size_t>(rank)] != bytes_of(step, rank)) {
        return wrong(fmt::format("other bytes than rank {} gave", rank));
      }
    }
  }

  void all_ok(const Step& step, ProcessGroup& group) {
    int first = 0;
    while (first < group.size() && !throws_in(step, first)) ++first;
    std::string text;
    try {
      group.all_ok([&] {
        if (throws_in(step, group.rank())) throw std::runtime_error(fmt::format("thrown by {}", group.rank()));
      });
    } catch (const Error& e) {
      text = e.what();
    }
    if (first == group.size()) {
      if (!text.empty()) wrong("all_ok threw although no rank did: " + text);
    } else if (text.find(fmt::format("thrown by {}", first)) == std::string::npos) {
      wrong(fmt::format("all_ok does not name rank {}, the first that threw: \"{}\"", first, text));
    }
  }

  void check_split(const Step& step, const ProcessGroup& parent) {
    const auto ranks = split_of(step, parent.size());
    const auto mine = std::find(ranks.begin(), ranks.end(), parent.rank());
    const auto& child = groups_[step.number];
    if ((child != nullptr) != (mine != ranks.end())) return wrong("a group for members only");
    if (child && (child->rank() != mine - ranks.begin() || child->size() != static_cast<int>(ranks.size()))) {
      wrong(fmt::format("rank {} of {}", child->rank(), child->size()));
    }
  }

  void check_sequence_number() {
    auto& group = *groups_.at(world);
    const auto mine = std::to_string(group.sequence_number());
    for (const auto& each : group.all_gather_bytes(mine)) {
      if (each != mine) wrong(fmt::format("sequence numbers {} and {}", mine, each));
    }
  }

  const Program& program_;
  std::optional<Kind> tampered_;
  std::map<int, ProcessGroupPtr> groups_;
  std::list<Pending> pending_;
  std::optional<Failure> failure_;
  int current_ = 0;
};

}  // namespace

std::optional<Failure> execute(const Program& program, const ProcessGroupPtr& world_group,
                               std::optional<Kind> tampered) {
  return Execution(program, world_group, tampered).run();
}

}  // namespace cohort::random_programs

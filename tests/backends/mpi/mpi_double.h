// SPDX-License-Identifier: BSD-3-Clause
//
// A test double of MPI that behaves as a test asks: requests that complete or never do, calls that fail, messages that
// have arrived.
#pragma once

#include <atomic>
#include <deque>
#include <functional>
#include <latch>
#include <map>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "backends/mpi/engine_interface.h"

namespace cohort::test {

class MpiDouble final : public mpi::Library {
 public:
  /// What the next requests do.
  enum class Ends { well, never, badly };

  struct Letter {
    int source = 0;
    int tag = 0;
    std::string text{};
  };

  // What it simulates.
  bool was_initialized = false;
  bool was_finalized = false;
  mpi::ThreadLevel level = mpi::ThreadLevel::multiple;
  bool init_blocks = false;
  bool creation_blocks = false;
  bool refuses = false;
  std::atomic<Ends> requests_end{Ends::well};
  std::deque<Letter> letters{};

  // What happened.
  std::atomic<int> finalized{0};
  std::atomic<int> freed{0};
  std::vector<std::string> calls{};
  std::atomic<bool> calls_overlapped{false};

  ~MpiDouble() override { release(); }
  /// Frees all blocked threads; a test must call it before it ends.
  void release() {
    if (!is_released_.exchange(true)) released_.count_down();
  }

  std::string version() override { return "Double MPI 1"; }
  bool is_initialized() override { return was_initialized; }
  bool is_finalized() override { return was_finalized; }
  mpi::ThreadLevel initialize() override {
    if (init_blocks) released_.wait();
    was_initialized = true;
    return level;
  }
  mpi::ThreadLevel thread_level() override { return level; }
  void finalize() override { ++finalized; }
  int world_rank() override { return 0; }
  int world_size() override { return 2; }
  int largest_tag() override { return 100; }

  mpi::Communicator create_communicator(std::span<const int> world_ranks, int /*tag*/) override {
    note("create", world_ranks.size());
    if (creation_blocks) released_.wait();
    return mpi::Communicator{7};
  }
  void free_communicator(mpi::Communicator /*communicator*/) override { ++freed; }
  mpi::Op create_op(mpi::Combine /*combine*/) override { return mpi::Op::first_own; }

  mpi::Request all_reduce(const void* /*in*/, void* /*out*/, int count, mpi::Element /*element*/, mpi::Op /*op*/,
                          mpi::Communicator /*on*/) override {
    return note("all_reduce", count);
  }
  mpi::Request reduce(const void* /*in*/, void* /*out*/, int count, mpi::Element /*element*/, mpi::Op /*op*/,
                      int /*root*/, mpi::Communicator /*on*/) override {
    return note("reduce", count);
  }
  mpi::Request broadcast(void* /*data*/, int bytes, int root, mpi::Communicator /*on*/) override {
    return note("broadcast " + std::to_string(root), bytes);
  }
  mpi::Request all_gather(void* /*data*/, int bytes_each, mpi::Communicator /*on*/) override {
    return note("all_gather", bytes_each);
  }
  mpi::Started all_gather_uneven(void* /*data*/, std::span<const int> bytes, mpi::Communicator /*on*/) override {
    return {.request = note("all_gather_uneven", bytes.size())};
  }
  mpi::Started reduce_scatter(const void* /*in*/, void* /*out*/, std::span<const int> counts, mpi::Element /*element*/,
                              mpi::Op /*op*/, mpi::Communicator /*on*/) override {
    return {.request = note("reduce_scatter", counts.size())};
  }
  mpi::Started all_to_all(std::span<const mpi::Piece> ins, std::span<const mpi::Piece> /*outs*/,
                          mpi::Communicator /*on*/) override {
    return {.request = note("all_to_all", ins.size())};
  }
  mpi::Request barrier(mpi::Communicator /*on*/) override { return note("barrier", 0); }

  mpi::Request send(const void* /*data*/, std::size_t bytes, int /*peer*/, int /*tag*/,
                    mpi::Communicator /*on*/) override {
    return note("send", bytes);
  }
  std::optional<mpi::Found> find(int peer, int tag, mpi::Communicator /*on*/) override {
    for (std::size_t i = 0; i < letters.size(); ++i) {
      const auto& letter = letters[i];
      if (letter.tag != tag || (peer >= 0 && letter.source != peer)) continue;
      found_.push_back(letter);
      letters.erase(letters.begin() + static_cast<std::ptrdiff_t>(i));
      return mpi::Found{.message = static_cast<mpi::Message>(found_.size() - 1),
                        .source = found_.back().source,
                        .bytes = found_.back().text.size()};
    }
    return std::nullopt;
  }
  mpi::Request receive(void* data, std::size_t bytes, mpi::Message message) override {
    const auto& text = found_.at(static_cast<std::size_t>(message)).text;
    std::copy_n(text.data(), std::min(bytes, text.size()), static_cast<char*>(data));
    return note("receive", bytes);
  }

  mpi::Outcome test(mpi::Request& /*request*/) override {
    if (inside_.fetch_add(1) > 0) calls_overlapped = true;
    std::this_thread::yield();
    inside_.fetch_sub(1);
    const auto ends = requests_end.load();
    return {.is_done = ends != Ends::never, .error = ends == Ends::badly ? 13 : 0};
  }
  std::string describe(int error) override { return "error " + std::to_string(error) + " of the double"; }

 private:
  template <class Number>
  mpi::Request note(const std::string& call, Number number) {
    if (refuses) throw std::runtime_error("the double refuses " + call);
    const std::lock_guard lock(mutex_);
    calls.push_back(call + " " + std::to_string(number));
    return mpi::Request{1};
  }

  std::mutex mutex_;
  std::vector<Letter> found_{};
  std::latch released_{1};
  std::atomic<bool> is_released_{false};
  std::atomic<int> inside_{0};
};

}  // namespace cohort::test

// SPDX-License-Identifier: BSD-3-Clause
//
// A backend of one's own, made from public headers alone: it moves all bytes through the group's store. That is slow,
// and works wherever ranks share a store. docs/writing-a-backend.md explains it step by step; 12_backend.cpp uses it:
//
//   example::register_store_backend();
//   auto pg = cohort::new_group("store", 30s, "cpu", {{"chunk_bytes", 1 << 16}});
#pragma once

#include <cohort/backend.h>
#include <cohort/new_group.h>
#include <cohort/prefix_store.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

namespace example {

using cohort::Bytes;
using cohort::Call;
using cohort::ConstBytes;
using cohort::Operation;

inline std::string_view text_of(ConstBytes bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

/// The receives of a rank that wait for messages with the same sender and tag, in the order in which they were started.
struct Receives {
  std::mutex mutex{};
  std::map<std::string, std::list<const cohort::Transfer*>> waiting{};  ///< by queue
};

/// A receive that is under way. The group calls advance() until it is true.
class QueuedMessage final : public cohort::Transfer {
 public:
  QueuedMessage(cohort::StorePtr store, std::shared_ptr<Receives> receives, std::string queue, Bytes data, int source,
                std::function<void()> check)
      : store_(std::move(store)),
        receives_(std::move(receives)),
        queue_(std::move(queue)),
        data_(data),
        source_(source),
        check_(std::move(check)) {
    const std::lock_guard lock(receives_->mutex);
    receives_->waiting[queue_].push_back(this);
  }
  ~QueuedMessage() override {
    const std::lock_guard lock(receives_->mutex);
    receives_->waiting[queue_].remove(this);
  }
  QueuedMessage(const QueuedMessage&) = delete;
  QueuedMessage& operator=(const QueuedMessage&) = delete;

  bool advance() override {
    const std::lock_guard lock(receives_->mutex);
    auto& waiting = receives_->waiting[queue_];
    if (waiting.front() != this || store_->queue_len(queue_) == 0) return false;
    waiting.pop_front();
    const auto message = store_->queue_pop(queue_);
    if (message.size() != data_.size()) {
      throw cohort::MismatchError("rank " + std::to_string(source_) + " sent " + std::to_string(message.size()) +
                                      " bytes, but this rank expects " + std::to_string(data_.size()),
                                  {.rank = source_});
    }
    if (!message.empty()) std::memcpy(data_.data(), message.data(), message.size());
    return true;
  }
  void check() override { check_(); }
  int source() const override { return source_; }

 private:
  cohort::StorePtr store_;
  std::shared_ptr<Receives> receives_;
  std::string queue_;
  Bytes data_;
  int source_;
  std::function<void()> check_;
};

/// A send: the message was in the store when this was made.
class SentMessage final : public cohort::Transfer {
 public:
  explicit SentMessage(int source) : source_(source) {}
  bool advance() override { return true; }
  int source() const override { return source_; }

 private:
  int source_;
};

class StoreBackend final : public cohort::Backend {
 public:
  StoreBackend(const cohort::StorePtr& store, int rank, int size, std::size_t chunk_bytes)
      : Backend("store", rank, size), store_(store), control_(store->clone()), chunk_bytes_(chunk_bytes) {}

  cohort::Capabilities capabilities() const override {
    using enum cohort::OpType;
    auto operations = cohort::Capabilities::bits({broadcast, all_reduce, cohort::OpType::reduce, all_gather,
                                                  all_gather_single, gather, scatter, reduce_scatter,
                                                  reduce_scatter_single, all_to_all, all_to_all_single, barrier});
    if (store_->has_queues()) operations |= cohort::Capabilities::bits({send, recv});
    return {.operations = operations, .splitting = true, .aborting = true, .deterministic_order = true};
  }

  void broadcast(const Operation& op, Call& call) override {
    Round round(*this, call);
    if (rank() == op.root) {
      round.post("all", op.out());
    } else {
      round.fetch(op.root, "all", op.out());
    }
    round.leave();
  }

  void all_gather(const Operation& op, Call& call) override {
    Round round(*this, call);
    round.post("all", op.in());
    for (int peer = 0; peer < size(); ++peer) round.fetch(peer, "all", op.outs[index(peer)]);
    round.leave();
  }

  void gather(const Operation& op, Call& call) override {
    Round round(*this, call);
    round.post(std::to_string(op.root), op.in());
    for (int peer = 0; rank() == op.root && peer < size(); ++peer) {
      round.fetch(peer, std::to_string(op.root), op.outs[index(peer)]);
    }
    round.leave();
  }

  void scatter(const Operation& op, Call& call) override {
    Round round(*this, call);
    for (int peer = 0; rank() == op.root && peer < size(); ++peer)
      round.post(std::to_string(peer), op.ins[index(peer)]);
    round.fetch(op.root, std::to_string(rank()), op.out());
    round.leave();
  }

  void all_to_all(const Operation& op, Call& call) override {
    Round round(*this, call);
    for (int peer = 0; peer < size(); ++peer) round.post(std::to_string(peer), op.ins[index(peer)]);
    for (int peer = 0; peer < size(); ++peer) round.fetch(peer, std::to_string(rank()), op.outs[index(peer)]);
    round.leave();
  }

  void barrier(const Operation& /*op*/, Call& call) override { Round(*this, call).leave(); }

  void all_reduce(const Operation& op, Call& call) override {
    check_reduction(op);
    Round round(*this, call);
    round.post("all", op.in());
    combine(round, "all", op);
    round.leave();
  }

  void reduce(const Operation& op, Call& call) override {
    check_reduction(op);
    Round round(*this, call);
    round.post("all", op.in());
    if (rank() == op.root) combine(round, "all", op);
    round.leave();
  }

  void reduce_scatter(const Operation& op, Call& call) override {
    check_reduction(op);
    Round round(*this, call);
    for (int peer = 0; peer < size(); ++peer) round.post(std::to_string(peer), op.ins[index(peer)]);
    combine(round, std::to_string(rank()), op);
    round.leave();
  }

  std::unique_ptr<cohort::Transfer> start_send(const Operation& op, Call& call) override {
    check_queues();
    throw_if_failed();
    store_->queue_push(queue_of(rank(), op.peer, op.tag), text_of(op.in()), call.deadline());
    return std::make_unique<SentMessage>(rank());
  }

  std::unique_ptr<cohort::Transfer> start_recv(const Operation& op, Call& /*call*/) override {
    check_queues();
    if (op.peer == any_source) refuse("recv_any_source");
    return std::make_unique<QueuedMessage>(store_, receives_, queue_of(op.peer, rank(), op.tag), op.out(), op.peer,
                                           [this] { throw_if_failed(); });
  }

  void rest(cohort::Deadline until) override {
    std::this_thread::sleep_until(earlier(until, cohort::Deadline::after(std::chrono::milliseconds(1))).when());
  }

  void abort(std::string_view reason) override {
    // The first one counts, if several ranks abort at once.
    control_->compare_set("aborted", "",
                          "rank " + std::to_string(rank()) + " aborted the group: " + std::string(reason));
  }

  cohort::BackendPtr split(const cohort::BackendSplit& split, cohort::Deadline) override {
    throw_if_failed();
    const auto place = std::ranges::find(split.ranks, rank());
    if (place == split.ranks.end()) return nullptr;
    return std::make_shared<StoreBackend>(std::make_shared<cohort::PrefixStore>(split.id, store_),
                                          static_cast<int>(place - split.ranks.begin()),
                                          static_cast<int>(split.ranks.size()), chunk_bytes_);
  }

 private:
  static std::size_t index(int rank) { return static_cast<std::size_t>(rank); }

  /// The keys of one collective. All ranks call collectives in the same order, so counting is enough to agree on them.
  class Round {
   public:
    Round(StoreBackend& backend, Call& call)
        : backend_(backend), call_(call), prefix_(std::to_string(backend.rounds_++) + '/') {
      backend.throw_if_failed();
    }

    /// Publishes `data` for `reader`, "all" or a rank.
    void post(const std::string& reader, ConstBytes data) {
      const auto key = key_of(backend_.rank(), reader);
      for (std::size_t begin = 0; begin < data.size(); begin += backend_.chunk_bytes_) {
        const auto chunk = data.subspan(begin, std::min(backend_.chunk_bytes_, data.size() - begin));
        set(key + '/' + std::to_string(begin), text_of(chunk));
      }
      set(key, describe(data.size()));
    }

    /// Waits for what `writer` has published for `reader`.
    void fetch(int writer, const std::string& reader, Bytes data) {
      const auto key = key_of(writer, reader);
      const auto theirs = get(key, writer);
      if (const auto ours = describe(data.size()); theirs != ours) {
        backend_.fail(
            cohort::MismatchError("rank " + std::to_string(writer) + " calls " + theirs + ", this rank " + ours,
                                  {.sequence = call_.sequence(), .rank = writer}));
      }
      for (std::size_t begin = 0; begin < data.size(); begin += backend_.chunk_bytes_) {
        const auto chunk = get(key + '/' + std::to_string(begin), writer);
        std::memcpy(data.data() + begin, chunk.data(), chunk.size());
      }
    }

    /// Returns when every rank has read what it needs, and removes this rank's keys. Rank 0 returns last: it may be the
    /// host of the store, and end after this.
    void leave() {
      const auto me = std::to_string(backend_.rank());
      const auto last_marks = std::exchange(backend_.marks_, {});
      mark("read/" + me);
      for (int peer = 0; peer < backend_.size(); ++peer) get(prefix_ + "read/" + std::to_string(peer), peer);
      for (const auto& key : keys_) backend_.store_->delete_key(key, call_.deadline());
      // Nobody waits for the marks of the last round any more; for those of this round somebody may.
      for (const auto& key : last_marks) backend_.store_->delete_key(key, call_.deadline());
      if (backend_.rank() != 0) {
        mark("left/" + me);
      } else {
        for (int peer = 1; peer < backend_.size(); ++peer) get(prefix_ + "left/" + std::to_string(peer), peer);
      }
    }

   private:
    std::string key_of(int writer, const std::string& reader) const {
      return prefix_ + std::to_string(writer) + "->" + reader;
    }
    std::string describe(std::size_t bytes) const {
      return std::string(to_string(call_.op())) + " of " + std::to_string(bytes) + " bytes";
    }
    void set(const std::string& key, std::string_view value) {
      backend_.store_->set(key, value, call_.deadline());
      keys_.push_back(key);
    }
    void mark(const std::string& key) {
      backend_.marks_.push_back(prefix_ + key);
      backend_.store_->set(prefix_ + key, "", call_.deadline());
    }

    std::string get(const std::string& key, int writer) {
      for (;;) {
        backend_.throw_if_failed();
        try {
          return backend_.store_->get(key, earlier(call_.deadline(), cohort::Deadline::after(abort_interval)));
        } catch (const cohort::StoreTimeoutError&) {
          if (!call_.deadline().expired()) continue;
          const auto op = std::string(to_string(call_.op()));
          backend_.fail(cohort::OperationTimeoutError(
              op + " #" + std::to_string(call_.sequence()) + ": rank " + std::to_string(writer) +
                  " did not join within " + std::to_string(call_.timeout().count()) + " ms",
              {.op = op, .sequence = call_.sequence(), .rank = writer, .cause = std::current_exception()}));
        }
      }
    }

    StoreBackend& backend_;
    Call& call_;
    std::string prefix_;
    std::vector<std::string> keys_{};
  };

  /// A store waits for one key at a time, so a wait looks this often whether the group was aborted.
  static constexpr std::chrono::milliseconds abort_interval{20};

  /// Keeps the first failure and throws it. Ranks that fail are out of step for good, so nothing may come after it.
  template <class E>
  [[noreturn]] void fail(const E& error) {
    const std::lock_guard lock(mutex_);
    if (!failure_) failure_ = std::make_exception_ptr(error);
    std::rethrow_exception(failure_);
  }

  void throw_if_failed() {
    if (control_->check({"aborted"})) fail(cohort::AbortedError(control_->get("aborted")));
    const std::lock_guard lock(mutex_);
    if (failure_) std::rethrow_exception(failure_);
  }

  void check_reduction(const Operation& op) const {
    using enum cohort::DType;
    constexpr std::array reduced{f32, f64, i32, i64};
    if (std::ranges::find(reduced, op.dtype) == reduced.end()) {
      refuse("reductions of " + std::string(to_string(op.dtype)));
    }
    if (op.reduce == cohort::ReduceOp::Kind::premul_sum) refuse("premul_sum");
  }

  /// Reads every rank's part in the order of ranks, so that all get the same bits.
  void combine(Round& round, const std::string& reader, const Operation& op) {
    std::vector<std::byte> sum(op.out().size());
    std::vector<std::byte> next(op.out().size());
    for (int peer = 0; peer < size(); ++peer) {
      round.fetch(peer, reader, peer == 0 ? sum : next);
      if (peer > 0) accumulate(op, sum, next);
    }
    if (op.reduce == cohort::ReduceOp::Kind::avg) divide(op, sum);
    std::ranges::copy(sum, op.out().begin());
  }

  /// Calls fn.operator()<T>() with the type of the reduction's elements.
  static void with_type(const Operation& op, const auto& fn) {
    switch (op.dtype) {
      case cohort::DType::f32:
        return fn.template operator()<float>();
      case cohort::DType::f64:
        return fn.template operator()<double>();
      case cohort::DType::i32:
        return fn.template operator()<std::int32_t>();
      default:
        return fn.template operator()<std::int64_t>();
    }
  }

  static void accumulate(const Operation& op, Bytes into, ConstBytes from) {
    with_type(op, [&]<class T>() {
      auto* const a = reinterpret_cast<T*>(into.data());
      const auto* const b = reinterpret_cast<const T*>(from.data());
      for (std::size_t i = 0; i < op.count_of(into); ++i) a[i] = combined(op.reduce.kind(), a[i], b[i]);
    });
  }

  void divide(const Operation& op, Bytes sum) const {
    with_type(op, [&]<class T>() {
      auto* const a = reinterpret_cast<T*>(sum.data());
      for (std::size_t i = 0; i < op.count_of(sum); ++i) a[i] /= static_cast<T>(size());
    });
  }

  template <class T>
  static T combined(cohort::ReduceOp::Kind kind, T a, T b) {
    using enum cohort::ReduceOp::Kind;
    if constexpr (std::floating_point<T>) {
      if (kind == min || kind == max) {
        if (std::isnan(a) || std::isnan(b)) return a + b;
      }
    } else {
      using U = std::make_unsigned_t<T>;  // sums and products wrap around
      if (kind == sum) return static_cast<T>(static_cast<U>(a) + static_cast<U>(b));
      if (kind == product) return static_cast<T>(static_cast<U>(a) * static_cast<U>(b));
      if (kind == band) return a & b;
      if (kind == bor) return a | b;
      if (kind == bxor) return a ^ b;
    }
    switch (kind) {
      case product:
        return a * b;
      case min:
        return std::min(a, b);
      case max:
        return std::max(a, b);
      default:
        return a + b;  // sum and avg: what goes with which type was checked by the group
    }
  }

  void check_queues() const {
    if (!store_->has_queues()) refuse("messages over a store without queues");
  }
  static std::string queue_of(int from, int to, int tag) {
    return "message/" + std::to_string(from) + "->" + std::to_string(to) + '/' + std::to_string(tag);
  }

  cohort::StorePtr store_;
  cohort::StorePtr control_;  ///< a handle of its own: abort() must not queue behind a get() that waits
  std::size_t chunk_bytes_;
  std::uint64_t rounds_ = 0;
  std::vector<std::string> marks_{};  ///< of the last collective, which are removed in the next one
  std::shared_ptr<Receives> receives_ = std::make_shared<Receives>();
  std::mutex mutex_{};
  std::exception_ptr failure_{};
};

inline cohort::ProcessGroupPtr make_store_group(const cohort::StorePtr& store, int rank, int size,
                                                std::chrono::milliseconds timeout, const cohort::Device& device,
                                                const cohort::Options& options) {
  if (device.type != cohort::DeviceType::cpu) throw cohort::ValueError("backend store is for cpu memory");
  cohort::OptionReader read(options, "store");
  const int chunk_bytes = read.get("chunk_bytes", 1 << 20);
  read.finish();
  if (chunk_bytes <= 0) throw cohort::ValueError("backend store: chunk_bytes must be positive");

  // Programs keep keys of their own in group->store(): the backend's are apart from them.
  auto keys = std::make_shared<cohort::PrefixStore>("backend", store);
  auto group = std::make_shared<cohort::ProcessGroup>(store, rank, size, timeout);
  group->add_backend(device.type,
                     std::make_shared<StoreBackend>(keys, rank, size, static_cast<std::size_t>(chunk_bytes)));
  return group;
}

inline void register_store_backend() {
  cohort::register_backend("store", make_store_group);
}

}  // namespace example

// SPDX-License-Identifier: BSD-3-Clause
#include "backends/mpi/point_to_point.h"

#include <fmt/format.h>

#include <exception>
#include <utility>

namespace cohort::mpi {

template <class Function>
auto PointToPoint::guarded(const Call& call, int peer, Function&& function) {
  const auto turn = runtime_.turn(call);
  try {
    return std::forward<Function>(function)(runtime_.library());
  } catch (const std::runtime_error& e) {
    auto context = status_.context(call);
    if (peer >= 0) context.rank = peer;
    context.cause = std::current_exception();
    throw BackendError(e.what(), std::move(context));
  }
}

class PointToPoint::Sending final : public Transfer {
 public:
  Sending(PointToPoint& owner, ConstBytes data, int peer, int tag, const Call& call)
      : owner_(owner), peer_(peer), call_(call) {
    request_ = owner_.guarded(call_, peer_, [&](Library& library) {
      return library.send(data.data(), data.size(), peer, tag, owner_.communicator_);
    });
  }
  ~Sending() override {
    if (is_done_) return;
    // MPI cannot cancel a send.
    owner_.status_.end(fmt::format("the group ended when a send to rank {} was given up", peer_));
    owner_.runtime_.leave_behind(nullptr);
  }
  bool advance() override {
    if (is_done_) return true;
    const auto outcome = owner_.guarded(call_, peer_, [&](Library& library) { return library.test(request_); });
    if (!outcome.is_done) return false;
    is_done_ = true;
    owner_.ended_.fetch_add(1, std::memory_order_relaxed);
    if (outcome.error == 0) return true;
    auto context = owner_.status_.context(call_);
    context.rank = peer_;
    throw BackendError(owner_.runtime_.library().describe(outcome.error), std::move(context));
  }
  void check() override { owner_.status_.check(call_); }
  int source() const override { return owner_.rank_; }

 private:
  PointToPoint& owner_;
  const int peer_;
  const Call call_;
  Request request_{};
  bool is_done_ = false;
};

class PointToPoint::Receiving final : public Transfer {
 public:
  Receiving(PointToPoint& owner, Bytes data, int peer_or_any, int tag, const Call& call)
      : owner_(owner), data_(data), peer_or_any_(peer_or_any), tag_(tag), call_(call) {
    const std::lock_guard lock(owner_.mutex_);
    place_ = owner_.posted_.insert(owner_.posted_.end(), this);
  }
  ~Receiving() override {
    const std::lock_guard lock(owner_.mutex_);
    if (state_ == State::posted) owner_.posted_.erase(place_);
    if (state_ != State::arriving) return;
    owner_.status_.end(fmt::format("the group ended when a message from rank {} was given up half-way", source_));
    owner_.runtime_.leave_behind(nullptr);
  }
  bool advance() override {
    const std::lock_guard lock(owner_.mutex_);
    if (state_ == State::posted) owner_.look_for(*this);
    if (error_) std::rethrow_exception(error_);
    if (state_ == State::arriving) look();
    return state_ == State::done;
  }
  void check() override { owner_.status_.check(call_); }
  int source() const override { return source_; }

  bool fits(int source, int tag) const {
    return tag_ == tag && (peer_or_any_ == source || peer_or_any_ == Backend::any_source);
  }
  /// Called with the mutex held.
  void take(const Found& found) {
    owner_.posted_.erase(place_);
    source_ = found.source;
    state_ = State::done;  // as it stays if something goes wrong
    auto context = owner_.status_.context(call_);
    context.rank = found.source;
    try {
      if (found.bytes != data_.size()) {
        owner_.discard(found, call_);
        throw MismatchError(fmt::format("rank {} sent {} bytes, and rank {} expects {}", found.source, found.bytes,
                                        owner_.rank_, data_.size()),
                            std::move(context));
      }
      request_ = owner_.guarded(
          call_, source_, [&](Library& library) { return library.receive(data_.data(), data_.size(), found.message); });
      state_ = State::arriving;
    } catch (...) {
      error_ = std::current_exception();
    }
  }
  int peer_or_any() const { return peer_or_any_; }
  int tag() const { return tag_; }
  const Call& call() const { return call_; }
  bool is_posted() const { return state_ == State::posted; }

 private:
  enum class State { posted, arriving, done };

  void look() {
    const auto outcome = owner_.guarded(call_, source_, [&](Library& library) { return library.test(request_); });
    if (!outcome.is_done) return;
    state_ = State::done;
    owner_.ended_.fetch_add(1, std::memory_order_relaxed);
    if (outcome.error == 0) return;
    auto context = owner_.status_.context(call_);
    context.rank = source_;
    error_ =
        std::make_exception_ptr(BackendError(owner_.runtime_.library().describe(outcome.error), std::move(context)));
    std::rethrow_exception(error_);
  }

  PointToPoint& owner_;
  const Bytes data_;
  const int peer_or_any_;
  const int tag_;
  const Call call_;
  std::list<Receiving*>::iterator place_{};
  State state_ = State::posted;
  Request request_{};
  int source_ = -1;
  std::exception_ptr error_{};
};

PointToPoint::~PointToPoint() {
  for (auto& each : unwanted_) runtime_.leave_behind(std::move(each.memory));
}

bool PointToPoint::has_unwanted() {
  const std::lock_guard lock(mutex_);
  return !unwanted_.empty();
}

void PointToPoint::look_for(Receiving& receive) {
  std::erase_if(unwanted_, [&](Unwanted& each) {
    return guarded(receive.call(), -1, [&](Library& library) { return library.test(each.request).is_done; });
  });
  while (receive.is_posted()) {
    const auto found = guarded(receive.call(), receive.peer_or_any(), [&](Library& library) {
      return library.find(receive.peer_or_any(), receive.tag(), communicator_);
    });
    if (!found) return;
    for (auto* const each : posted_) {
      if (!each->fits(found->source, receive.tag())) continue;
      each->take(*found);  // the loop ends with `receive` at the latest
      break;
    }
  }
}

void PointToPoint::discard(const Found& found, const Call& call) {
  auto memory = std::make_shared<std::vector<std::byte>>(found.bytes + 1);
  guarded(call, found.source, [&](Library& library) {
    auto request = library.receive(memory->data(), found.bytes, found.message);
    if (!library.test(request).is_done) unwanted_.push_back({request, std::move(memory)});
  });
}

int PointToPoint::tag_in_mpi(int tag, const Call& call) const {
  // Cohort's own messages have negative tags, which MPI does not have: they take the topmost ones.
  constexpr int own_tags = 8;
  const int largest = runtime_.largest_tag() - own_tags;
  if (tag > largest) {
    throw ValueError(fmt::format("tag {}: with this MPI tags go up to {}", tag, largest), status_.context(call));
  }
  return tag < 0 ? runtime_.largest_tag() + 1 + tag : tag;
}

std::unique_ptr<Transfer> PointToPoint::start_send(ConstBytes data, int peer, int tag, Call& call) {
  status_.check(call);
  return std::make_unique<Sending>(*this, data, peer, tag_in_mpi(tag, call), call);
}

std::unique_ptr<Transfer> PointToPoint::start_recv(Bytes data, int peer_or_any, int tag, Call& call) {
  status_.check(call);
  return std::make_unique<Receiving>(*this, data, peer_or_any, tag_in_mpi(tag, call), call);
}

}  // namespace cohort::mpi

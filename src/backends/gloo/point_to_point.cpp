// SPDX-License-Identifier: BSD-3-Clause
#include "backends/gloo/point_to_point.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <thread>

#include "backends/gloo/slots.h"
#include "group/mismatch.h"

namespace cohort::gloo {

namespace {

constexpr Time no_waiting{};

}  // namespace

PointToPoint::PointToPoint(std::shared_ptr<Mesh> mesh, int rank, int size) : mesh_(std::move(mesh)), rank_(rank) {
  for (int each = 0; each < size; ++each) {
    if (each != rank) others_.push_back(each);
  }
}

std::uint64_t PointToPoint::frame_slot(int tag) {
  return slot_of(Use::frame, static_cast<std::uint32_t>(tag));
}
std::uint64_t PointToPoint::payload_slot(int from, int to, std::uint64_t number) {
  // A connection serves both directions, and both sends and receives use its slots.
  return slot_of(Use::payload, (number << 1U) | static_cast<std::uint64_t>(from < to));
}

// --- sending

class PointToPoint::Sending final : public Pending {
 public:
  Sending(PointToPoint& all, const Operation& op) : all_(all), key_(op.peer, op.tag) {
    const auto data = op.in();
    const int peer = op.peer;
    const int tag = op.tag;
    const bool is_whole = data.size() <= longest_inline || peer == all_.rank_;
    const auto frame = std::make_shared<Frame>(header_bytes + (is_whole ? data.size() : 0));
    if (is_whole && !data.empty()) std::memcpy(frame->memory.data() + header_bytes, data.data(), data.size());
    const std::lock_guard lock(all_.mutex_);
    const auto number = all_.next_number_++;
    const Header header{.bytes = data.size(), .number = number, .type = message_type(op), .unused = 0};
    std::memcpy(frame->memory.data(), &header, sizeof(header));
    if (peer == all_.rank_) {
      frame->peer = peer;
      auto& channel = all_.channels_[tag];
      channel.arrived.push_back(frame);
      all_.match(channel, tag);
      return;
    }
    frame->message = all_.mesh_->message(frame->memory.data(), frame->memory.size());
    frame->message->send(peer, frame_slot(tag), frame->memory.size());
    all_.leaving_[key_].push_back(frame);
    if (is_whole) return;
    // Gloo only reads it, but its interface is not const.
    payload_ = all_.mesh_->message(const_cast<std::byte*>(data.data()), data.size());
    payload_->send(peer, payload_slot(all_.rank_, peer, number), data.size());
  }
  ~Sending() override {
    // A frame that is still queued will be sent, but Gloo must stop using memory of the caller.
    if (payload_ != nullptr) all_.mesh_->fail("a send was given up");
  }
  Sending(const Sending&) = delete;
  Sending& operator=(const Sending&) = delete;

  bool finish(Deadline deadline) override {
    if (!all_.wait_until_left(key_, most_leaving, deadline)) return false;
    if (payload_ == nullptr) return true;
    if (!payload_->is_done(deadline.when())) return false;
    payload_.reset();
    return true;
  }
  int source() const override { return -1; }

 private:
  PointToPoint& all_;
  Key key_;
  std::unique_ptr<Message> payload_;  ///< null if there is none, or if it has been sent
};

bool PointToPoint::wait_until_left(const Key& key, std::size_t at_most, Deadline deadline) {
  for (;;) {
    FramePtr first;
    {
      const std::lock_guard lock(mutex_);
      const auto& queue = leaving_[key];
      if (queue.size() <= at_most) return true;
      first = queue.front();
    }
    if (!first->message->is_done(deadline.when())) return false;
    const std::lock_guard lock(mutex_);
    auto& queue = leaving_[key];
    if (!queue.empty() && queue.front() == first) queue.pop_front();
  }
}

void PointToPoint::flush(Deadline deadline) {
  std::vector<Key> keys;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [key, queue] : leaving_) keys.push_back(key);
  }
  for (const auto& key : keys) wait_until_left(key, 0, deadline);
}

// --- receiving

class PointToPoint::Receiving final : public Pending {
 public:
  Receiving(PointToPoint& all, const Operation& op, WrongMessage wrong_message)
      : all_(all),
        peer_or_any_(op.peer),
        tag_(op.tag),
        type_(message_type(op)),
        data_(op.out()),
        wrong_message_(std::move(wrong_message)) {
    const std::lock_guard lock(all_.mutex_);
    auto& channel = all_.channels_[tag_];
    channel.waiting.push_back(this);
    try {
      all_.match(channel, tag_);
    } catch (...) {
      std::erase(channel.waiting, this);
      throw;
    }
  }
  ~Receiving() override {
    if (payload_ != nullptr) {
      all_.mesh_->fail("a receive was given up");
    } else if (source_ < 0) {
      const std::lock_guard lock(all_.mutex_);
      auto& channel = all_.channels_[tag_];
      std::erase(channel.waiting, this);
      // The frame was matched but not opened, so it is still the first of its tag.
      if (frame_ != nullptr) channel.arrived.push_front(std::move(frame_));
    }
  }
  Receiving(const Receiving&) = delete;
  Receiving& operator=(const Receiving&) = delete;

  bool finish(Deadline deadline) override {
    bool is_cut_off = false;
    for (int looks = 1; source_ < 0; ++looks) {
      if (!deadline.expired() && !has_frame()) all_.wait_for_frame(tag_, deadline);
      {
        const std::lock_guard lock(all_.mutex_);
        if (frame_ == nullptr) all_.match(all_.channels_[tag_], tag_);
      }
      if (has_frame()) {
        open();
      } else if (is_cut_off) {
        throw std::runtime_error("the connection is closed");
      } else if (deadline.expired()) {
        return false;
      }
      // Frames are received from any rank, so the end of one connection does not end their wait. A rank may leave right
      // after it has sent: what came before the end is looked for once more.
      is_cut_off =
          looks % 10 == 0 && peer_or_any_ >= 0 && peer_or_any_ != all_.rank_ && all_.mesh_->is_broken(peer_or_any_);
    }
    if (payload_ != nullptr) {
      if (!payload_->is_done(deadline.when())) return false;
      payload_.reset();
    }
    if (error_) std::rethrow_exception(error_);
    return true;
  }
  bool has_begun() const override { return source_ >= 0; }
  int source() const override { return source_; }

  /// Called with the lock held.
  bool accepts(int peer) const { return peer_or_any_ == Backend::any_source || peer_or_any_ == peer; }
  void give(FramePtr frame) { frame_ = std::move(frame); }

 private:
  bool has_frame() {
    const std::lock_guard lock(all_.mutex_);
    return frame_ != nullptr;
  }

  void open() {
    const auto frame = std::move(frame_);
    Header header{};
    std::memcpy(&header, frame->memory.data(), sizeof(header));
    const auto bytes = header.bytes;
    source_ = frame->peer;
    const bool is_right = bytes == data_.size() && header.type == type_;
    if (!is_right) error_ = wrong_message_(frame->peer, bytes, header.type);
    if (bytes <= longest_inline || frame->peer == all_.rank_) {
      if (is_right && bytes > 0) std::memcpy(data_.data(), frame->memory.data() + header_bytes, bytes);
      return;
    }
    // A wrong message is received all the same, into other memory, so that its sender and the connection
    // can continue.
    if (!is_right) elsewhere_.resize(bytes);
    payload_ = all_.mesh_->message(is_right ? data_.data() : elsewhere_.data(), bytes);
    payload_->recv(frame->peer, payload_slot(frame->peer, all_.rank_, header.number), bytes);
  }

  PointToPoint& all_;
  const int peer_or_any_;
  const int tag_;
  const std::uint32_t type_;
  Bytes data_;
  WrongMessage wrong_message_;
  FramePtr frame_;  ///< protected by the lock until it is opened
  int source_ = -1;
  std::exception_ptr error_;
  std::vector<std::byte> elsewhere_;
  std::unique_ptr<Message> payload_;
};

PointToPoint::FramePtr PointToPoint::post_frame(int tag) {
  auto frame = std::make_shared<Frame>(header_bytes + longest_inline);
  frame->message = mesh_->message(frame->memory.data(), frame->memory.size());
  frame->message->recv_any(others_, frame_slot(tag), frame->memory.size());
  return frame;
}

void PointToPoint::match(Channel& channel, int tag) {
  const auto hand_out = [&] {
    for (auto frame = channel.arrived.begin(); frame != channel.arrived.end();) {
      const auto taker = std::find_if(channel.waiting.begin(), channel.waiting.end(),
                                      [&](const Receiving* each) { return each->accepts((*frame)->peer); });
      if (taker == channel.waiting.end()) {
        ++frame;
        continue;
      }
      (*taker)->give(std::move(*frame));
      channel.waiting.erase(taker);
      frame = channel.arrived.erase(frame);
    }
  };
  hand_out();
  while (!channel.posted.empty() && !channel.waiting.empty() && channel.posted.front()->message->is_done(no_waiting)) {
    auto frame = std::move(channel.posted.front());
    channel.posted.pop_front();
    frame->peer = frame->message->peer();
    channel.arrived.push_back(std::move(frame));
    hand_out();
  }
  while (!others_.empty() && channel.posted.size() < channel.waiting.size()) channel.posted.push_back(post_frame(tag));
}

void PointToPoint::wait_for_frame(int tag, Deadline deadline) {
  FramePtr first;
  {
    const std::lock_guard lock(mutex_);
    const auto& channel = channels_[tag];
    if (!channel.posted.empty()) first = channel.posted.front();
  }
  // Nothing wakes this wait for what this rank sends to itself or what another thread hands out, so it ends
  // periodically.
  if (first != nullptr) {
    first->message->is_done(earlier(deadline, Deadline::after(std::chrono::milliseconds(10))).when());
  } else {
    std::this_thread::sleep_until(earlier(deadline, Deadline::after(std::chrono::milliseconds(1))).when());
  }
}

std::unique_ptr<PointToPoint::Pending> PointToPoint::start_send(const Operation& op) {
  return std::make_unique<Sending>(*this, op);
}
std::unique_ptr<PointToPoint::Pending> PointToPoint::start_recv(const Operation& op, WrongMessage wrong_message) {
  return std::make_unique<Receiving>(*this, op, std::move(wrong_message));
}

}  // namespace cohort::gloo

// SPDX-License-Identifier: BSD-3-Clause
//
// Gloo's transport with access to all its waits. When connections are closed, Gloo wakes everyone who waits on them
// except those whose message was just being read, which would wait until their own timeout. Here they are woken as
// well.
#pragma once

#include <gloo/common/error.h>
#include <gloo/transport/context.h>
#include <gloo/transport/unbound_buffer.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <unordered_set>
#include <utility>
#include <vector>

namespace cohort::gloo {

class WatchedTransport final : public ::gloo::transport::Context {
 public:
  explicit WatchedTransport(std::shared_ptr<::gloo::transport::Context> inner)
      : Context(inner->rank, inner->size), inner_(std::move(inner)) {
    setTimeout(inner_->getTimeout());
  }

  std::unique_ptr<::gloo::transport::Pair>& getPair(int peer) override { return inner_->getPair(peer); }
  std::unique_ptr<::gloo::transport::Pair>& createPair(int peer) override { return inner_->createPair(peer); }
  std::unique_ptr<::gloo::transport::UnboundBuffer> createUnboundBuffer(void* data, std::size_t bytes) override {
    return std::make_unique<Buffer>(waits_, inner_->createUnboundBuffer(data, bytes));
  }

  /// Final: waits that end without success are errors from now on.
  void give_up() { waits_->is_over = true; }
  /// Ends all waits. The connections are closed, so no wait that matters begins later.
  void end_waits() {
    const std::lock_guard lock(waits_->mutex);
    for (auto* const each : waits_->buffers) {
      each->abortWaitRecv();
      each->abortWaitSend();
    }
  }

 private:
  struct Waits {
    std::atomic<bool> is_over{false};
    std::mutex mutex;
    std::unordered_set<::gloo::transport::UnboundBuffer*> buffers;
  };

  class Buffer final : public ::gloo::transport::UnboundBuffer {
   public:
    Buffer(std::shared_ptr<Waits> waits, std::unique_ptr<::gloo::transport::UnboundBuffer> inner)
        : UnboundBuffer(inner->ptr, inner->size), waits_(std::move(waits)), inner_(std::move(inner)) {
      const std::lock_guard lock(waits_->mutex);
      waits_->buffers.insert(inner_.get());
    }
    ~Buffer() override {
      const std::lock_guard lock(waits_->mutex);
      waits_->buffers.erase(inner_.get());
    }
    Buffer(const Buffer&) = delete;
    Buffer& operator=(const Buffer&) = delete;

    bool waitRecv(int* from, std::chrono::milliseconds timeout) override {
      return checked(inner_->waitRecv(from, timeout));
    }
    bool waitSend(int* to, std::chrono::milliseconds timeout) override {
      return checked(inner_->waitSend(to, timeout));
    }
    void abortWaitRecv() override { inner_->abortWaitRecv(); }
    void abortWaitSend() override { inner_->abortWaitSend(); }
    void send(int to, std::uint64_t slot, std::size_t offset, std::size_t bytes) override {
      inner_->send(to, slot, offset, bytes);
    }
    void recv(int from, std::uint64_t slot, std::size_t offset, std::size_t bytes) override {
      inner_->recv(from, slot, offset, bytes);
    }
    void recv(std::vector<int> from, std::uint64_t slot, std::size_t offset, std::size_t bytes) override {
      inner_->recv(std::move(from), slot, offset, bytes);
    }

   private:
    /// Gloo's collectives ignore what a wait returns.
    bool checked(bool is_done) const {
      if (!is_done && waits_->is_over) throw ::gloo::IoException("the connections were given up");
      return is_done;
    }

    std::shared_ptr<Waits> waits_;
    std::unique_ptr<::gloo::transport::UnboundBuffer> inner_;
  };

  std::shared_ptr<::gloo::transport::Context> inner_;
  std::shared_ptr<Waits> waits_ = std::make_shared<Waits>();
};

}  // namespace cohort::gloo

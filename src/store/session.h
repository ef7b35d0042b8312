// SPDX-License-Identifier: BSD-3-Clause
//
// One connection on the server's event loop: moves bytes between a socket, with or without TLS, and a Conversation.
#pragma once

#include <asio.hpp>
#include <asio/ssl.hpp>

#include <algorithm>
#include <functional>
#include <memory>
#include <new>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "store/conversation.h"
#include "store/socket.h"

namespace cohort {

using Socket = asio::generic::stream_protocol::socket;
using TlsSocket = asio::ssl::stream<Socket>;

/// A connection as the server sees it, with or without TLS.
class SessionHandle {
 public:
  virtual ~SessionHandle() = default;
  virtual bool is_authenticated() const = 0;
  /// Closes it without sending anything more: the handshake took too long, or the server stops.
  virtual void close(bool as_rejected) = 0;
};

template <class Stream>
class Session final : public SessionHandle, public std::enable_shared_from_this<Session<Stream>> {
 public:
  using Gone = std::function<void(SessionHandle*)>;

  Session(Stream stream, Hub& hub, Gone gone)
      : stream_(std::move(stream)),
        hub_(hub),
        share_(hub),
        gone_(std::move(gone)),
        conversation_(std::make_unique<Conversation>(hub, [this] { on_output(); })) {}

  void start() {
    if constexpr (std::is_same_v<Stream, TlsSocket>) {
      stream_.async_handshake(asio::ssl::stream_base::server,
                              [self = this->shared_from_this()](const asio::error_code& error) {
                                error ? self->close(true) : self->guarded([&self] { self->begin(); });
                              });
    } else {
      begin();
    }
  }

  bool is_authenticated() const override { return conversation_ && conversation_->is_authenticated(); }

  void close(bool as_rejected) override {
    if (!conversation_) return;
    const bool was_authenticated = conversation_->is_authenticated();
    hub_.connection_closed(was_authenticated, as_rejected || conversation_->is_rejected());
    asio::error_code ignored;
    stream_.lowest_layer().close(ignored);
    // Handlers in flight still hold this object, but what the client held ends now.
    conversation_.reset();
    inbox_ = {};
    count_memory();
    gone_(this);
  }

 private:
  /// Where there is no memory for what a connection needs, that connection ends, and no other.
  template <class Action>
  void guarded(const Action& action) {
    try {
      action();
    } catch (const std::bad_alloc&) {
      close(true);
    }
  }

  void count_memory() noexcept { share_.set(inbox_.capacity() + sending_.capacity()); }

  /// Small, because each connection has one and most are idle. It grows while larger requests arrive.
  static constexpr std::size_t idle_inbox = 1024;
  static constexpr std::size_t busy_inbox = std::size_t{256} * 1024;

  void begin() {
    asio::error_code ignored;
    stream_.lowest_layer().non_blocking(true, ignored);  // for send_now(); asynchronous calls work either way
    write();
    read();
  }

  void read() {
    if (reading_ || !conversation_ || closing_ || conversation_->has_backlog()) return;
    reading_ = true;
    if (inbox_.empty()) inbox_.resize(idle_inbox);
    count_memory();
    stream_.async_read_some(asio::buffer(inbox_),
                            [self = this->shared_from_this()](const asio::error_code& error, std::size_t size) {
                              self->reading_ = false;
                              if (!self->conversation_) return;
                              if (error) return self->close(!self->conversation_->is_authenticated());
                              self->guarded([&] { self->on_read(size); });
                            });
  }

  void on_read(std::size_t size) {
    const bool was_authenticated = conversation_->is_authenticated();
    feed({inbox_.data(), size});
    if (!was_authenticated && conversation_->is_authenticated()) hub_.connection_authenticated();
    const bool filled = size == inbox_.size();
    if (filled && inbox_.size() < busy_inbox && hub_.has_room(busy_inbox)) {
      inbox_.resize(std::min(inbox_.size() * 4, busy_inbox));
    } else if (!filled && inbox_.size() > idle_inbox) {
      inbox_ = std::vector<char>(idle_inbox);
    }
    write();
    read();
  }

  void feed(std::string_view bytes) {
    closing_ = conversation_->feed(bytes) == Conversation::Next::close;
    if (conversation_->had_wrong_secret()) {
      hub_.warn_of_wrong_secret(peer_name(stream_.lowest_layer().native_handle()));
    }
    if (const auto keepalive_timeout = conversation_->take_keepalive_timeout()) {
      set_keepalive_timeout(stream_.lowest_layer().native_handle(), *keepalive_timeout);
    }
  }

  /// Another connection's request has completed what this one waited for. Nothing may escape from here, and the
  /// conversation must not be closed while it speaks: shutting the socket down ends the read that is under way.
  void on_output() noexcept {
    try {
      if (!conversation_->has_failed()) return write();
    } catch (...) {  // most likely std::bad_alloc; whatever it is, this connection is given up
    }
    asio::error_code ignored;
    stream_.lowest_layer().shutdown(asio::socket_base::shutdown_both, ignored);
  }

  void write() {
    if (writing_ || !conversation_) return;
    if (conversation_->outbox().empty()) {
      if (closing_) close(false);
      return;
    }
    writing_ = true;
    sending_ = conversation_->take_outbox();
    count_memory();
    const auto sent = send_now();
    if (sent == sending_.size()) {
      sent_all();
      return;
    }
    asio::async_write(stream_, asio::buffer(sending_) + sent,
                      [self = this->shared_from_this()](const asio::error_code& error, std::size_t) {
                        self->sent_all();
                        if (error) return self->close(false);
                        self->guarded([&] {
                          if (self->conversation_ && self->conversation_->has_backlog()) self->feed({});
                          self->write();
                          self->read();
                        });
                      });
  }

  void sent_all() noexcept {
    writing_ = false;
    std::string().swap(sending_);  // an assignment would keep the memory
    count_memory();
  }

  /// Most replies fit the socket's buffer, and sending them here saves a round of the event loop. The rest of a reply,
  /// errors, and whatever has consequences (closing, more requests to execute) are handled asynchronously, because this
  /// may run inside the conversation.
  std::size_t send_now() {
    if constexpr (std::is_same_v<Stream, Socket>) {
      if (closing_ || conversation_->has_backlog()) return 0;
      asio::error_code would_block;
      return stream_.send(asio::buffer(sending_), 0, would_block);
    }
    return 0;
  }

  Stream stream_;
  Hub& hub_;
  Hub::Share share_;
  Gone gone_;
  std::unique_ptr<Conversation> conversation_;  ///< null once closed
  std::vector<char> inbox_;
  std::string sending_;
  bool reading_ = false;
  bool writing_ = false;
  bool closing_ = false;
};

}  // namespace cohort

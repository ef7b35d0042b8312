// SPDX-License-Identifier: BSD-3-Clause
//
// One connection on the server's event loop: moves bytes between a socket, with or without TLS, and a Conversation.
#pragma once

#include <asio.hpp>
#include <asio/ssl.hpp>

#include <algorithm>
#include <functional>
#include <memory>
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
        gone_(std::move(gone)),
        conversation_(std::make_unique<Conversation>(hub, [this] { write(); })) {}

  void start() {
    if constexpr (std::is_same_v<Stream, TlsSocket>) {
      stream_.async_handshake(asio::ssl::stream_base::server,
                              [self = this->shared_from_this()](const asio::error_code& error) {
                                error ? self->close(true) : self->begin();
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
    gone_(this);
  }

 private:
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
    stream_.async_read_some(asio::buffer(inbox_),
                            [self = this->shared_from_this()](const asio::error_code& error, std::size_t size) {
                              self->on_read(error, size);
                            });
  }

  void on_read(const asio::error_code& error, std::size_t size) {
    reading_ = false;
    if (!conversation_) return;
    if (error) return close(!conversation_->is_authenticated());
    const bool was_authenticated = conversation_->is_authenticated();
    feed({inbox_.data(), size});
    if (!was_authenticated && conversation_->is_authenticated()) hub_.connection_authenticated();
    const bool filled = size == inbox_.size();
    if (filled && inbox_.size() < busy_inbox) {
      inbox_.resize(std::min(inbox_.size() * 4, busy_inbox));
    } else if (!filled && inbox_.size() > idle_inbox) {
      inbox_ = std::vector<char>(idle_inbox);
    }
    write();
    read();
  }

  void feed(std::string_view bytes) {
    closing_ = conversation_->feed(bytes) == Conversation::Next::close;
    if (const auto silence = conversation_->take_silence()) {
      notice_silence(stream_.lowest_layer().native_handle(), *silence);
    }
  }

  void write() {
    if (writing_ || !conversation_) return;
    if (conversation_->outbox().empty()) {
      if (closing_) close(false);
      return;
    }
    writing_ = true;
    sending_ = conversation_->take_outbox();
    const auto sent = send_now();
    if (sent == sending_.size()) {
      writing_ = false;
      sending_ = {};
      return;
    }
    asio::async_write(stream_, asio::buffer(sending_) + sent,
                      [self = this->shared_from_this()](const asio::error_code& error, std::size_t) {
                        self->writing_ = false;
                        self->sending_ = {};
                        if (error) return self->close(false);
                        if (self->conversation_ && self->conversation_->has_backlog()) self->feed({});
                        self->write();
                        self->read();
                      });
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
  Gone gone_;
  std::unique_ptr<Conversation> conversation_;  ///< null once closed
  std::vector<char> inbox_;
  std::string sending_;
  bool reading_ = false;
  bool writing_ = false;
  bool closing_ = false;
};

}  // namespace cohort

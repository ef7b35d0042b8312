// SPDX-License-Identifier: BSD-3-Clause
//
// The server's side of one connection, without any I/O: bytes in, bytes out. The event loop moves them; tests and
// fuzzers feed it directly.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "store/handshake.h"
#include "store/hub.h"
#include "store/table.h"
#include "store/wire.h"

namespace cohort {

class Conversation {
 public:
  /// `has_output` is called when bytes appear in the outbox outside feed(): another client completed what this one
  /// waited for.
  Conversation(Hub& hub, std::function<void()> has_output);
  ~Conversation();
  Conversation(const Conversation&) = delete;
  Conversation& operator=(const Conversation&) = delete;

  enum class Next : std::uint8_t {
    more,   ///< send the outbox, read on
    close,  ///< send the outbox, then close
  };
  /// Takes what has arrived, in pieces of any size. Where it throws std::bad_alloc, the connection has to be closed;
  /// the table and the other connections are unharmed.
  Next feed(std::string_view bytes);
  /// Whether requests were left undone because too many replies wait to be sent. Once those are sent, call feed() again
  /// with no bytes.
  bool has_backlog() const { return backlog_; }

  bool is_authenticated() const { return claim_.has_value(); }
  bool is_rejected() const { return rejected_; }
  /// Its claim was of this protocol, but made without the secret.
  bool had_wrong_secret() const { return had_wrong_secret_; }
  /// There was no memory for a reply, so the connection has to be closed.
  bool has_failed() const { return has_failed_; }
  /// After how much silence this client wants to count as gone; nullopt if it did not say, or this was called already.
  std::optional<std::chrono::milliseconds> take_keepalive_timeout() {
    return std::exchange(keepalive_timeout_, std::nullopt);
  }
  const std::string& outbox() const { return outbox_; }
  std::string take_outbox() {
    auto bytes = std::exchange(outbox_, {});
    count_memory();
    return bytes;
  }

 private:
  /// Once this many bytes of replies wait to be sent, further requests are not executed.
  static constexpr std::size_t most_unsent = 1U << 20U;
  /// The same when the memory limit is reached.
  static constexpr std::size_t most_unsent_when_full = 16U << 10U;

  /// Requests up to this size are accepted even when the memory limit is reached: deleting must stay possible.
  static constexpr std::size_t small_frame = 64U << 10U;
  /// Replies up to this size are sent even then.
  static constexpr std::size_t small_reply = 16U << 10U;

  Next reject();
  Next on_claim(std::string_view bytes);
  Next on_frame(std::string_view body);
  /// Why the request may not be executed; empty if it may.
  std::string objection(const wire::Request& request) const;
  void set_will(const StoreRequest& will);
  void on_reply(const wire::Reply& reply) noexcept;
  void answer(const wire::Reply& reply);
  void refuse(const std::string& why);
  bool has_many_unsent() const;
  void keep(std::string_view bytes);
  void count_memory() noexcept;

  Hub& hub_;
  Hub::Share share_;
  std::function<void()> has_output_;
  handshake::Hello hello_;
  std::optional<handshake::Claim> claim_;
  std::vector<std::pair<std::string, std::string>> will_;
  std::size_t will_bytes_ = 0;
  std::optional<std::chrono::milliseconds> keepalive_timeout_;
  std::string inbox_;        ///< an incomplete claim or frame
  std::size_t refused_ = 0;  ///< bytes of a refused request that are still to come, and that nobody keeps
  std::string outbox_;
  bool backlog_ = false;
  bool rejected_ = false;
  bool had_wrong_secret_ = false;
  bool has_failed_ = false;
  bool feeding_ = false;
  Table::Caller caller_;  ///< executes the requests of this connection
};

}  // namespace cohort

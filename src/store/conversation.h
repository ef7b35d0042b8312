// SPDX-License-Identifier: BSD-3-Clause
//
// One client's side of the server, without any I/O: bytes in, bytes out. The event loop moves them; tests and fuzzers
// feed it directly.
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
  /// `has_output` is called when bytes appear in the outbox outside feed(): another client completed our wait.
  Conversation(Hub& hub, std::function<void()> has_output);
  ~Conversation();
  Conversation(const Conversation&) = delete;
  Conversation& operator=(const Conversation&) = delete;

  enum class Next : std::uint8_t {
    more,   ///< send the outbox, read on
    close,  ///< send the outbox, then close
  };
  /// Takes what arrived, in pieces of any size.
  Next feed(std::string_view bytes);
  /// Requests were left undone because too many answers wait to be sent: feed() again, with nothing, when they are.
  bool has_backlog() const { return backlog_; }

  bool is_authenticated() const { return claim_.has_value(); }
  bool is_rejected() const { return rejected_; }
  /// How soon this client wants its silence to be taken for its end; nothing if it did not say, or was asked already.
  std::optional<std::chrono::milliseconds> take_silence() { return std::exchange(silence_, std::nullopt); }
  const std::string& outbox() const { return outbox_; }
  std::string take_outbox() { return std::exchange(outbox_, {}); }

 private:
  /// A client that asks without reading the answers is not served beyond this many bytes of them.
  static constexpr std::size_t most_unsent = 1U << 20U;

  /// Requests up to this size are taken even when the memory limit is reached: deleting must stay possible.
  static constexpr std::size_t small_frame = 64U << 10U;

  /// A request that waits for keys or for its turn at a queue.
  struct Waiting {
    wire::Op op;
    std::vector<std::string> keys;
    std::optional<Table::Waiter> waiter;
    std::optional<Table::Popper> popper;
  };

  Next reject();
  Next on_claim(std::string_view bytes);
  Next on_frame(std::string_view body);
  /// Why the request may not be executed; empty: it may.
  std::string objection(const wire::Request& request) const;
  void execute(const wire::Request& request);
  void wait(const wire::Request& request);
  void cancel();
  void answer(const wire::Reply& reply);
  void refuse(const std::string& why);
  void answer_with_values(const std::vector<std::string_view>& keys);
  void stop_waiting();
  void keep(std::string_view bytes);

  Hub& hub_;
  std::function<void()> has_output_;
  handshake::Hello hello_;
  std::optional<handshake::Claim> claim_;
  std::unique_ptr<Waiting> waiting_;
  std::vector<std::pair<std::string, std::string>> will_;
  std::optional<std::chrono::milliseconds> silence_;
  std::string inbox_;  ///< an incomplete message
  std::string outbox_;
  bool backlog_ = false;
  bool rejected_ = false;
  bool feeding_ = false;
};

}  // namespace cohort

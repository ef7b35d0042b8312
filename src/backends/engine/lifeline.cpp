// SPDX-License-Identifier: BSD-3-Clause
#include "backends/engine/lifeline.h"

#include <cohort/error.h>
#include <cohort/log.h>
#include <cohort/prefix_store.h>
#include <cohort/tcp_store.h>

#include <fmt/format.h>
#include <pthread.h>

#include "core/log_format.h"
#include "core/parse.h"
#include "core/reaper.h"
#include "core/start_thread.h"

namespace cohort {

namespace {

constexpr auto ended_key = "ended";
/// For telling others that this rank gives up, or leaves: what is left to do then is not worth much waiting.
constexpr std::chrono::seconds farewell_patience{2};
/// How long who declares a group's end stays for it: a store in reach has it by then.
constexpr std::chrono::milliseconds declaring_patience{200};
constexpr std::string_view reason_mark = "verdict: ";

TcpStore* tcp_store_below(const StorePtr& store) {
  const auto* const prefixed = dynamic_cast<PrefixStore*>(store.get());
  return dynamic_cast<TcpStore*>(prefixed == nullptr ? store.get() : prefixed->underlying_non_prefix_store().get());
}

/// A will is written by the server, which knows no prefixes.
std::string full_key(const StorePtr& store) {
  std::string key = ended_key;
  auto below = store;
  while (const auto prefixed = std::dynamic_pointer_cast<PrefixStore>(below)) {
    key = fmt::format("{}/{}", prefixed->prefix(), key);
    below = prefixed->underlying_store();
  }
  return key;
}

}  // namespace

std::string encode(const Verdict& verdict) {
  const auto* const kind = verdict.kind == Verdict::Kind::aborted   ? "aborted"
                           : verdict.kind == Verdict::Kind::cut_off ? "cut_off"
                                                                    : "lost";
  return fmt::format("{} {} {}", kind, verdict.rank, verdict.text);
}

std::string as_reason(const Verdict& verdict) {
  return std::string(reason_mark) + encode(verdict);
}

std::optional<Verdict> verdict_in(const std::string& message) {
  const auto mark = message.find(reason_mark);
  if (mark == std::string::npos) return std::nullopt;
  return decode_verdict(message.substr(mark + reason_mark.size()));
}

std::optional<Verdict> decode_verdict(const std::string& text) {
  const auto blank = text.find(' ');
  const auto second = text.find(' ', blank == std::string::npos ? blank : blank + 1);
  if (second == std::string::npos) return std::nullopt;
  const auto kind = text.substr(0, blank);
  if (kind != "aborted" && kind != "lost" && kind != "cut_off") return std::nullopt;
  try {
    return Verdict{
        .kind = kind == "lost"      ? Verdict::Kind::lost
                : kind == "cut_off" ? Verdict::Kind::cut_off
                                    : Verdict::Kind::aborted,
        .rank = parse_integer<int>(std::string_view(text).substr(blank + 1, second - blank - 1)).value_or(-1),
        .text = text.substr(second + 1)};
  } catch (const ValueError&) {
    return std::nullopt;
  }
}

void throw_verdict(const Verdict& verdict, ErrorContext context) {
  if (verdict.rank >= 0) context.rank = verdict.rank;
  switch (verdict.kind) {
    case Verdict::Kind::lost:
      throw PeerLostError(
          fmt::format("rank {} is gone: its process ended, or its host is down or cut off", verdict.rank),
          std::move(context));
    case Verdict::Kind::aborted:
      throw AbortedError(
          fmt::format("rank {} aborted the group{}{}", verdict.rank, verdict.text.empty() ? "" : ": ", verdict.text),
          std::move(context));
    case Verdict::Kind::cut_off:
      break;
  }
  throw PeerLostError(fmt::format("the job's store cannot be reached any more: its host is down, or this one is cut "
                                  "off ({})",
                                  verdict.text),
                      std::move(context));
}

std::unique_ptr<Lifeline> Lifeline::tie(const StorePtr& store, int rank, Deadline deadline,
                                        std::function<void(const Verdict&)> on_end) {
  if (tcp_store_below(store) == nullptr) return nullptr;
  std::unique_ptr<Lifeline> line(new Lifeline(std::move(on_end)));
  line->will_store_ = store->clone();
  line->will_ = tcp_store_below(line->will_store_);
  line->ear_store_ = store->clone();
  line->ear_ = tcp_store_below(line->ear_store_);
  line->ear_->notice_silence(patience);
  line->will_->set_on_disconnect({full_key(store)}, {encode(Verdict{.rank = rank})}, deadline, patience);
  line->listener_ = start_thread([&lifeline = *line] { lifeline.listen(); });
  return line;
}

Lifeline::~Lifeline() {
  declaring_.finish();
  bool is_in_reach = false;
  {
    const std::lock_guard lock(mutex_);
    is_leaving_ = true;
    is_in_reach = !is_out_of_reach_ && !(verdict_ && verdict_->kind == Verdict::Kind::cut_off);
  }
  if (is_in_reach) {
    try {
      will_->set_on_disconnect({}, {}, farewell_patience);
    } catch (const Error& e) {
      log_debug("a group's end could not be told to the store: {}", e.what());
    }
  }
  ear_->interrupt();
  join_now_or_later(std::move(listener_));
}

void Lifeline::listen() {
  ::pthread_setname_np(::pthread_self(), "cohort-lifeline");
  try {
    const auto text = ear_store_->get(ended_key, Deadline::never());
    conclude(decode_verdict(text).value_or(Verdict{.kind = Verdict::Kind::aborted, .text = text}));
  } catch (const Error& e) {
    conclude({.kind = Verdict::Kind::cut_off, .text = e.message()});
  }
}

void Lifeline::conclude(const Verdict& verdict) {
  {
    const std::lock_guard lock(mutex_);
    if (is_leaving_) return;
    verdict_ = verdict;
    concluded_.notify_all();
  }
  on_end_(verdict);
}

void Lifeline::declare(const Verdict& verdict) {
  const auto tell = [this, verdict] {
    try {
      will_store_->compare_set(ended_key, "", encode(verdict), farewell_patience);
    } catch (const Error& e) {
      log_debug("the end of a group could not be told to the others: {}", e.what());
      const std::lock_guard lock(mutex_);
      is_out_of_reach_ = true;
    }
  };
  try {
    declaring_.run(tell, declaring_patience);
  } catch (const Error& e) {
    log_debug("the end of a group could not be told to the others: {}", e.what());
  }
}

std::optional<Verdict> Lifeline::verdict(std::chrono::milliseconds at_most) const {
  std::unique_lock lock(mutex_);
  if (at_most.count() > 0) concluded_.wait_for(lock, at_most, [this] { return verdict_.has_value(); });
  return verdict_;
}

}  // namespace cohort

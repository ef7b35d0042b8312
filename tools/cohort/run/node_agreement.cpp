// SPDX-License-Identifier: BSD-3-Clause
#include "run/node_agreement.h"

#include <cohort/error.h>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <array>
#include <asio/post.hpp>
#include <nlohmann/json.hpp>
#include <vector>

#include "common/exit_status.h"
#include "common/free_port.h"
#include "common/host_name.h"

namespace cohort::tool {

namespace {

using nlohmann::json;
using std::chrono::milliseconds;
using std::chrono::seconds;

/// How long one attempt to connect may take, and therefore leaving in the middle of it.
constexpr milliseconds slice{200};
/// For calls that wait for nobody.
constexpr seconds store_timeout{10};
/// A host that has been silent for this long is lost. A network may pause for seconds, and so may a migrating host.
constexpr milliseconds keepalive_timeout{10'000};
/// How often a launcher looks under --keep-going whether another host is lost.
constexpr seconds look_for_hosts{1};
/// After this long the user is told which hosts have not joined.
constexpr seconds noticeable{5};

std::string key(const char* what, int number) {
  return fmt::format("cohort/run/{}/{}", what, number);
}

std::string finished_key(int attempt, int node) {
  return fmt::format("cohort/run/finished/{}/{}", attempt, node);
}

struct Leaving {};

}  // namespace

NodeAgreement::NodeAgreement(asio::io_context& loop, const LaunchPlan& plan, TcpStoreOptions store, Events events)
    : loop_(loop),
      plan_(plan),
      options_(std::move(store)),
      events_(std::make_shared<const Events>(std::move(events))) {}

NodeAgreement::~NodeAgreement() {
  {
    const std::lock_guard lock(leaving_);
    is_leaving_ = true;
    if (store_ != nullptr && !has_outcome_) store_->interrupt();
  }
  waiting_thread_.join();
  talking_thread_.join();
  if (!has_outcome_) return;
  try {
    store_->set_on_disconnect({}, {}, store_timeout);  // others may still have to read the outcome
  } catch (const Error&) {
    return;  // the store is gone, and with it what it would have set
  }
}

void NodeAgreement::announce(const AttemptOutcome& outcome) {
  asio::post(loop_, [events = events_, outcome] { events->on_outcome(outcome); });
}

void NodeAgreement::explain_delay(const std::string& text) {
  asio::post(loop_, [events = events_, text] { events->on_delay(text); });
}

void NodeAgreement::join(int attempt) {
  asio::post(waiting_thread_, [this, attempt] {
    try {
      has_outcome_ = false;
      const auto deadline = Deadline::after(plan_.join_timeout);
      if (!store_) connect(deadline);
      const auto world = meet(attempt, deadline);
      asio::post(loop_, [events = events_, world] { events->on_start(world); });
      const auto outcome = decode_outcome(await_outcome(attempt));
      has_outcome_ = true;
      announce(outcome);
    } catch (const Leaving&) {
      return;
    } catch (const std::exception& e) {
      if (is_leaving_) return;
      announce({AttemptOutcome::Kind::failed, 1, true, e.what()});
    }
  });
}

void NodeAgreement::connect(Deadline deadline) {
  auto options = options_;
  const auto soon = Deadline::after(noticeable);
  bool is_explained = false;
  for (;;) {
    options.timeout = std::max(milliseconds(1), std::min(slice, std::chrono::ceil<milliseconds>(deadline.remaining())));
    try {
      auto store = std::make_shared<TcpStore>(options);
      store->set_keepalive_timeout(keepalive_timeout);
      const std::lock_guard lock(leaving_);
      if (is_leaving_) throw Leaving{};
      store_ = std::move(store);
      break;
    } catch (const TimeoutError&) {
      if (is_leaving_) throw Leaving{};
      if (soon.expired() && !is_explained) {
        explain_delay(fmt::format("waiting for the launcher of node 0 at {}", to_string(options.endpoint)));
        is_explained = true;
      }
      if (deadline.expired()) {
        throw TimeoutError(
            fmt::format("no launcher of node 0 at {} within {} s; is `cohort run --node-rank 0` running "
                        "there?",
                        to_string(options.endpoint), std::chrono::duration_cast<seconds>(plan_.join_timeout).count()));
      }
    }
  }
  introduce();
  talker_ = store_->clone();
}

void NodeAgreement::introduce() {
  const auto job = fmt::format("--nnodes {} --max-restarts {}{}", plan_.nodes, plan_.max_restarts,
                               plan_.keep_going ? " --keep-going" : "");
  const auto theirs = store_->compare_set("cohort/run/job", "", job, store_timeout);
  if (theirs != job) {
    throw ValueError(fmt::format("the hosts disagree: here {}, elsewhere {}", job, theirs));
  }
  json self{{"host", host_name()}, {"pid", ::getpid()}, {"ranks", plan_.local_size}};
  if (plan_.node_rank == 0) self["master_port"] = free_port();
  const auto holder = store_->compare_set(key("node", plan_.node_rank), "", self.dump(), store_timeout);
  if (holder != self.dump()) {
    const auto other = json::parse(holder);
    throw ValueError(fmt::format("--node-rank {} is taken by host {} (pid {}); each host needs its own",
                                 plan_.node_rank, other.at("host").get<std::string>(), other.at("pid").get<int>()));
  }
}

World NodeAgreement::meet(int attempt, Deadline deadline) {
  const AttemptOutcome gone{
      AttemptOutcome::Kind::failed, 1, true,
      fmt::format("the launcher of node {} (pid {} on host {}) is gone", plan_.node_rank, ::getpid(), host_name())};
  // For the next attempt as well: a launcher may die between two attempts.
  const auto keys = plan_.keep_going ? Store::Keys{key("start", attempt), key("gone", plan_.node_rank)}
                                     : Store::Keys{key("start", attempt), key("outcome", attempt),
                                                   key("start", attempt + 1), key("outcome", attempt + 1)};
  store_->set_on_disconnect(keys, Store::Values(keys.size(), encode(gone)), store_timeout, keepalive_timeout);
  if (store_->add(key("arrived", attempt), 1, store_timeout) == plan_.nodes) {
    store_->compare_set(key("start", attempt), "", encode({.kind = AttemptOutcome::Kind::go}), store_timeout);
  }
  AttemptOutcome answer;
  try {
    answer = decode_outcome(await_start(attempt, deadline));
  } catch (const StoreTimeoutError&) {
    throw TimeoutError(fmt::format("not all hosts arrived within {} s; missing: node {}",
                                   std::chrono::duration_cast<seconds>(plan_.join_timeout).count(), missing_nodes()));
  }
  if (answer.kind != AttemptOutcome::Kind::go) throw DistributedError(answer.text);
  return place();
}

std::string NodeAgreement::await_start(int attempt, Deadline deadline) {
  try {
    return await(key("start", attempt), earlier(deadline, Deadline::after(noticeable)));
  } catch (const StoreTimeoutError&) {
    const auto missing = missing_nodes();
    if (!missing.empty()) explain_delay(fmt::format("waiting for node {}", missing));
    return await(key("start", attempt), deadline);
  }
}

std::string NodeAgreement::missing_nodes() const {
  std::vector<int> missing;
  for (int node = 0; node < plan_.nodes; ++node) {
    if (!store_->check({key("node", node)}, store_timeout)) missing.push_back(node);
  }
  return fmt::format("{}", fmt::join(missing, ", "));
}

World NodeAgreement::place() const {
  Store::Keys keys;
  for (int node = 0; node < plan_.nodes; ++node) keys.push_back(key("node", node));
  World world;
  world.size = 0;
  int node = 0;
  for (const auto& text : store_->multi_get(keys, store_timeout)) {
    const auto other = json::parse(text);
    if (node == 0) world.master_port = other.at("master_port");
    if (node == plan_.node_rank) world.first_rank = world.size;
    world.size += other.at("ranks").get<int>();
    ++node;
  }
  return world;
}

std::string NodeAgreement::await(const std::string& name, Deadline deadline) {
  try {
    return store_->get(name, deadline);
  } catch (const NetworkError& e) {
    if (is_leaving_) throw Leaving{};
    throw NetworkError(fmt::format("the launcher of node 0 is gone ({})", e.message()));
  }
}

template <class Work>
void NodeAgreement::talk(Work&& work) {
  asio::post(talking_thread_, [this, work = std::forward<Work>(work)] {
    try {
      work(*talker_);
    } catch (const std::exception& e) {
      announce({AttemptOutcome::Kind::failed, 1, true, fmt::format("cannot reach the other hosts: {}", e.what())});
    }
  });
}

void NodeAgreement::finished(int attempt, const AttemptOutcome& own) {
  talk([this, attempt, own](Store& store) {
    store.set(finished_key(attempt, plan_.node_rank), encode(own), store_timeout);
    settle_if_all_ended(store, attempt);
  });
}

void NodeAgreement::settle_if_all_ended(Store& store, int attempt) const {
  AttemptOutcome all{.kind = AttemptOutcome::Kind::done};
  bool has_success = false;
  const auto add = [&](const AttemptOutcome& own) {
    has_success = has_success || own.exit_code == 0 || own.exit_code == ranks_were_lost;
    if (own.exit_code == 0) return;
    if (all.exit_code == 0) all.exit_code = own.exit_code;
    all.text += (all.text.empty() ? "" : "; ") + own.text;
  };
  for (int node = 0; node < plan_.nodes; ++node) {
    if (store.check({finished_key(attempt, node)}, store_timeout)) {
      add(decode_outcome(store.get(finished_key(attempt, node), store_timeout)));
    } else if (store.check({key("gone", node)}, store_timeout)) {
      add(decode_outcome(store.get(key("gone", node), store_timeout)));
    } else {
      return;
    }
  }
  if (all.exit_code != 0 && has_success) all.exit_code = ranks_were_lost;
  store.compare_set(key("outcome", attempt), "", encode(all), store_timeout);
}

std::string NodeAgreement::await_outcome(int attempt) {
  std::vector<bool> is_known(static_cast<std::size_t>(plan_.nodes), false);
  for (;;) {
    try {
      return await(key("outcome", attempt), plan_.keep_going ? Deadline::after(look_for_hosts) : Deadline::never());
    } catch (const StoreTimeoutError&) {
      for (int node = 0; node < plan_.nodes; ++node) {
        if (is_known[static_cast<std::size_t>(node)] || !store_->check({key("gone", node)}, store_timeout)) continue;
        is_known[static_cast<std::size_t>(node)] = true;
        explain_delay(decode_outcome(store_->get(key("gone", node), store_timeout)).text + "; the others go on");
      }
      settle_if_all_ended(*store_, attempt);
    }
  }
}

void NodeAgreement::propose(int attempt, const AttemptOutcome& outcome) {
  talk([attempt, outcome](Store& store) {
    store.compare_set(key("outcome", attempt), "", encode(outcome), store_timeout);
  });
}

}  // namespace cohort::tool

// SPDX-License-Identifier: BSD-3-Clause
#include <cohort/error.h>
#include <cohort/prefix_store.h>
#include <cohort/rendezvous.h>
#include <cohort/store_collectives.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include "core/log_format.h"
#include "core/parse.h"
#include "rendezvous/job_keys.h"
#include "rendezvous/schemes.h"
#include "rendezvous/store_host.h"
#include "store/last_will.h"

namespace cohort {

namespace {

/// The handlers by scheme; process-wide and thread-safe.
class Schemes {
 public:
  static Schemes& instance() {
    static Schemes schemes;
    return schemes;
  }
  void add(std::string scheme, RendezvousHandler handler) {
    const std::lock_guard lock(mutex_);
    if (handlers_.contains(scheme))
      throw Error(fmt::format("the rendezvous scheme {}:// is registered already", scheme));
    handlers_.emplace(std::move(scheme), std::move(handler));
  }
  RendezvousHandler find(const std::string& scheme) const {
    const std::lock_guard lock(mutex_);
    const auto it = handlers_.find(scheme);
    if (it != handlers_.end()) return it->second;
    std::vector<std::string_view> known;
    for (const auto& [name, handler] : handlers_) known.emplace_back(name);
    throw Error(fmt::format("unknown rendezvous scheme {}://: known are {}", scheme, fmt::join(known, ", ")));
  }

 private:
  mutable std::mutex mutex_;
  std::map<std::string, RendezvousHandler> handlers_ = {
      {"env", env_scheme}, {"tcp", tcp_scheme}, {"file", file_scheme}};
};

/// The value from the options or the query. Throws AssertionError if both give it.
std::optional<int> combined(std::string_view url, const RendezvousUrl& parsed, std::string_view key,
                            std::optional<int> given) {
  const auto it = parsed.query.find(key);
  if (it == parsed.query.end()) return given;
  if (given)
    throw AssertionError(fmt::format("rendezvous \"{}\": {} is given in the URL and as an argument", url, key));
  const auto value = parse_integer<int>(it->second);
  if (!value) throw ValueError(fmt::format("rendezvous \"{}\": {}=\"{}\" is not a number", url, key, it->second));
  return value;
}

/// Gives this rendezvous keys of its own. The store itself counts how many times each rank has begun one, so that this
/// works for ranks that are threads as well as for processes that were restarted.
StorePtr own_keys(const StorePtr& store, int rank, const std::string& name, Deadline deadline) {
  const auto base = fmt::format("rendezvous/{}", name);
  if (!name.empty()) store->set(begun_named_key(rank), "", deadline);
  const auto number = store->add(begun_key(name, rank), 1, deadline);
  return std::make_shared<PrefixStore>(fmt::format("{}/{}", base, number), store);
}

void check_size(Store& store, int size, Deadline deadline) {
  const auto ours = std::to_string(size);
  const auto theirs = store.compare_set("size", "", ours, deadline);
  if (theirs != ours) {
    throw ValueError(fmt::format("this process was told there are {} processes, another was told {}", ours, theirs));
  }
}

/// What all ranks wait for: StoreCollectives::barrier("arrived").
constexpr auto gate_key = "arrived/gate";
/// A rank whose host has been silent for this long counts as lost.
constexpr std::chrono::milliseconds keepalive_timeout{4000};
constexpr std::chrono::milliseconds withdrawing_timeout{2000};

/// Tells the others if this process dies before all ranks have arrived: its last will opens the gate and says who it
/// was. Without a TcpStore nobody is told before the deadline.
class Arrival {
 public:
  Arrival(const StorePtr& store, int rank, Deadline deadline) {
    if (tcp_store_below(store) == nullptr) return;
    held_ = store->clone();
    tcp_store_below(held_)->set_on_disconnect({full_key(held_, gate_key)}, {std::to_string(rank)}, deadline,
                                              keepalive_timeout);
  }
  ~Arrival() {
    if (held_ == nullptr) return;
    try {
      tcp_store_below(held_)->set_on_disconnect({}, {}, withdrawing_timeout);
    } catch (const Error& e) {
      log_debug("a last will could not be withdrawn: {}", e.what());
    }
  }
  Arrival(const Arrival&) = delete;
  Arrival& operator=(const Arrival&) = delete;

 private:
  StorePtr held_;
};

void await_all(const RendezvousResult& found, Deadline deadline) {
  auto& store = *found.store;
  {
    const Arrival arrival(found.store, found.rank, deadline);
    StoreCollectives(found.store, found.rank, found.size).barrier("arrived", deadline);
    if (const auto who = parse_integer<int>(store.get(gate_key, deadline))) {
      throw PeerLostError(fmt::format("rank {} is gone: its process ended, or its host is down or cut off", *who),
                          {.op = "rendezvous", .rank = who});
    }
  }
  // The last one to pass the gate leaves nothing behind. All ranks have met: whatever goes wrong now is no error.
  try {
    const auto until = Deadline::after(withdrawing_timeout);
    if (store.add("arrived/passed", 1, until) < found.size) return;
    for (const auto* const key : {"size", "arrived/count", gate_key, "arrived/passed"}) store.delete_key(key, until);
    for (int rank = 0; rank < found.size; ++rank) store.delete_key(fmt::format("arrived/{}", rank), until);
  } catch (const Error& e) {
    log_debug("the keys of a rendezvous were left in the store: {}", e.what());
  }
}

}  // namespace

void require_rank_and_size(const RendezvousRequest& request) {
  if (!request.rank) throw ValueError(fmt::format("rendezvous \"{}\": the rank is missing (?rank=)", request.url));
  if (!request.size) {
    throw ValueError(fmt::format("rendezvous \"{}\": the world size is missing (?world_size=)", request.url));
  }
}

void refuse_unknown_query(const RendezvousUrl& url, const std::string& text) {
  for (const auto& [key, value] : url.query) {
    if (key == "rank" || key == "world_size") continue;
    throw ValueError(
        fmt::format("rendezvous \"{}\": unknown parameter \"{}\"; known are rank and world_size", text, key));
  }
}

TcpStoreOptions protected_options(const RendezvousRequest& request, const std::string& secret_file) {
  TcpStoreOptions options;
  options.timeout = request.timeout;
  if (!secret_file.empty()) options.secret = Secret::load(secret_file);
  options.tls = tls_options(request.env);
  return options;
}

RendezvousResult meet(std::string_view url, const RendezvousOptions& options) {
  const auto parsed = parse_rendezvous_url(url);
  const auto handler = Schemes::instance().find(parsed.scheme);
  const auto deadline = Timeout(options.timeout).deadline_or(options.timeout);
  const RendezvousRequest request{.url = std::string(url),
                                  .rank = combined(url, parsed, "rank", options.rank),
                                  .size = combined(url, parsed, "world_size", options.size),
                                  .deadline = deadline,
                                  .timeout = options.timeout,
                                  .env = options.env ? *options.env : Env::read()};
  if (request.size && *request.size < 1) {
    throw ValueError(fmt::format("rendezvous \"{}\": {} processes; there is at least one", url, *request.size));
  }
  if (request.rank && (*request.rank < 0 || (request.size && *request.rank >= *request.size))) {
    throw ValueError(fmt::format("rendezvous \"{}\": rank {}: a rank is from 0 to size - 1", url, *request.rank));
  }
  auto result = handler(request);
  if (result.store == nullptr) throw Error(fmt::format("the handler of {}:// returned no store", parsed.scheme));
  set_log_rank(result.rank);
  naming_store_host(store_host(parsed.scheme, request.env), result.rank, [&] {
    result.store = own_keys(result.store, result.rank, options.name, deadline);
    check_size(*result.store, result.size, deadline);
    await_all(result, deadline);
  });
  result.store->set_timeout(options.timeout);
  return result;
}

void tell_launcher(const RendezvousResult& met, const Env& env) {
  if (met.rank != 0 || env.store.empty()) return;
  std::static_pointer_cast<PrefixStore>(met.store)->underlying_store()->set(group_made_key, "");
}

RendezvousResult rendezvous(std::string_view url, RendezvousOptions options) {
  auto result = meet(url, options);
  tell_launcher(result, options.env ? *options.env : Env::read());
  return result;
}

void register_rendezvous_handler(std::string scheme, RendezvousHandler handler) {
  Schemes::instance().add(std::move(scheme), std::move(handler));
}

}  // namespace cohort

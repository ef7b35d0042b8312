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

#include "core/parse.h"
#include "rendezvous/schemes.h"

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
  const auto number = store->add(fmt::format("{}/begun/{}", base, rank), 1, deadline);
  return std::make_shared<PrefixStore>(fmt::format("{}/{}", base, number), store);
}

void check_size(Store& store, int size, Deadline deadline) {
  const auto ours = std::to_string(size);
  const auto theirs = store.compare_set("size", "", ours, deadline);
  if (theirs != ours) {
    throw ValueError(fmt::format("this process was told there are {} processes, another was told {}", ours, theirs));
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

RendezvousResult rendezvous(std::string_view url, RendezvousOptions options) {
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
  result.store = own_keys(result.store, result.rank, options.name, deadline);
  check_size(*result.store, result.size, deadline);
  StoreCollectives(result.store, result.rank, result.size).barrier("arrived", deadline);
  result.store->set_timeout(options.timeout);
  return result;
}

void register_rendezvous_handler(std::string scheme, RendezvousHandler handler) {
  Schemes::instance().add(std::move(scheme), std::move(handler));
}

}  // namespace cohort

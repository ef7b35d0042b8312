// SPDX-License-Identifier: BSD-3-Clause
#include <cohort/error.h>
#include <cohort/new_group.h>
#include <cohort/prefix_store.h>
#include <cohort/rendezvous.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <mutex>
#include <utility>

#include "core/immortal.h"
#include "core/parse.h"
#include "core/random.h"
#include "group/factories.h"
#include "group/group_ids.h"
#include "group/process_group_state.h"
#include "rendezvous/schemes.h"
#include "rendezvous/store_host.h"

namespace cohort {

namespace {

/// Process-wide and thread-safe: the factories by name.
class Backends {
 public:
  static Backends& instance() {
    static Immortal<Backends> backends;
    return *backends;
  }
  void add(std::string name, ProcessGroupFactory factory) {
    if (factory == nullptr) throw ValueError(fmt::format("register_backend: {} has no factory", name));
    if (name.empty() || name.find_first_of(":, ") != std::string::npos) {
      throw ValueError(
          fmt::format("register_backend: \"{}\": a name must not be empty or contain a colon, comma or blank", name));
    }
    const std::lock_guard lock(mutex_);
    if (!backends_.try_emplace(name, KnownBackend{.factory = std::move(factory)}).second) {
      throw ValueError(fmt::format("the backend {} is already registered", name));
    }
  }
  ProcessGroupFactory find(std::string_view name) const {
    const auto known = copy();
    const auto it = known.find(name);
    if (it == known.end()) {
      throw ValueError(fmt::format("unknown backend \"{}\": there are {}", name, fmt::join(usable(known), ", ")));
    }
    if (const auto why = it->second.what_is_missing(); !why.empty()) {
      throw ValueError(fmt::format("the backend {} cannot be used here: {}; there are {}", name, why,
                                   fmt::join(usable(known), ", ")));
    }
    return it->second.factory;
  }
  std::vector<std::string> list() const { return usable(copy()); }
  /// A copy that can be used without the lock, because finding out what a backend lacks may load a library.
  KnownBackends copy() const {
    const std::lock_guard lock(mutex_);
    return backends_;
  }

 private:
  static std::vector<std::string> usable(const KnownBackends& known) {
    std::vector<std::string> names;
    for (const auto& [name, backend] : known) {
      if (backend.what_is_missing().empty()) names.push_back(name);
    }
    return names;
  }

  mutable std::mutex mutex_;
  KnownBackends backends_ = builtin_backends();
};

struct Choice {
  std::optional<DeviceType> device{};  ///< nullopt: all devices of the group
  std::string name{};
  ProcessGroupFactory factory{};
};

/// Parses "shm" or "cpu:shm,cuda:nccl".
std::vector<Choice> parse_backends(std::string_view text) {
  std::vector<Choice> choices;
  for (const auto part : split(text, ',')) {
    const auto colon = part.find(':');
    Choice choice;
    if (colon != std::string_view::npos) choice.device = parse_device_type(part.substr(0, colon));
    choice.name = part.substr(colon == std::string_view::npos ? 0 : colon + 1);
    choice.factory = find_backend(choice.name);
    for (const auto& other : choices) {
      if (!other.device || !choice.device || other.device == choice.device) {
        throw ValueError(
            fmt::format("new_group: \"{}\": one backend, or one for each device as in cpu:shm,cuda:nccl", text));
      }
    }
    choices.push_back(std::move(choice));
  }
  return choices;
}

RendezvousResult find_members(const GroupMembers& members, std::chrono::milliseconds timeout) {
  const int given = (members.store != nullptr) + members.rank.has_value() + members.size.has_value();
  if (given == 0) return meet("env://", {.timeout = timeout, .name = members.name});
  if (given != 3) throw ValueError("new_group: store, rank and size are given together or not at all");
  const int rank = *members.rank;
  const int size = *members.size;
  if (size < 1 || rank < 0 || rank >= size) throw ValueError(fmt::format("new_group: rank {} of {}", rank, size));
  // The prefix contains a number that each rank counts in the store itself, so that this also works for ranks that are
  // threads.
  const auto base = fmt::format("groups/{}", members.name);
  const auto number = members.store->add(fmt::format("{}/begun/{}", base, rank), 1, timeout);
  return {.store = std::make_shared<PrefixStore>(fmt::format("{}/{}", base, number), members.store),
          .rank = rank,
          .size = size};
}

/// Makes the group from the factories of its backends.
ProcessGroupPtr make_group(const std::vector<Choice>& choices, const RendezvousResult& found,
                           std::chrono::milliseconds timeout, const Device& device, const Options& options,
                           Deadline deadline) {
  const auto& store = found.store;
  const auto make = [&](const Choice& choice, const Device& on, const Options& its_options) {
    const auto keys =
        choice.device ? std::make_shared<PrefixStore>(std::string(to_string(*choice.device)), store) : store;
    keys->set_timeout(std::max(std::chrono::milliseconds(1),
                               std::chrono::duration_cast<std::chrono::milliseconds>(deadline.remaining())));
    auto group = choice.factory(keys, found.rank, found.size, timeout, on, its_options);
    if (group == nullptr) throw Error(fmt::format("the factory of backend {} returned no group", choice.name));
    return group;
  };

  ProcessGroupPtr group;
  if (!choices.front().device) {
    group = make(choices.front(), device, options);
  } else {
    group = std::make_shared<ProcessGroup>(store, found.rank, found.size, timeout, agree_on_id(*store, "group"));
    for (const auto& choice : choices) {
      const Device on = *choice.device == device.type ? device : Device(*choice.device);
      group->add_backend(*choice.device, make(choice, on, options.for_device(*choice.device))->backend(on));
    }
    group->set_default_backend(device.type);
  }
  // If the factory got another timeout from an option, it has set that one.
  if (group->timeout() == ProcessGroup::default_timeout) group->set_timeout(timeout);
  if (GroupAccess::has_local_id(*group)) GroupAccess::set_id(*group, agree_on_id(*store, group->name()));
  if (device.index >= 0) group->set_bound_device(device);
  store->set_timeout(timeout);
  return group;
}

}  // namespace

std::string random_id() {
  std::array<std::uint8_t, 8> bytes{};
  fill_random(std::as_writable_bytes(std::span(bytes)));
  return fmt::format("{:02x}", fmt::join(bytes, ""));
}

std::string local_id() {
  return std::string(local_id_prefix) + random_id();
}

std::string agree_on_id(Store& store, const std::string& backend) {
  return store.compare_set("id", "", fmt::format("{}-{}", backend, random_id()));
}

GroupRecipe recipe_for(std::string_view caller, std::string_view backend, std::chrono::milliseconds timeout,
                       const Device& device, const Options& options) {
  auto choices = parse_backends(backend);
  if (timeout.count() <= 0) {
    throw ValueError(fmt::format("{}: the timeout must be positive, not {} ms", caller, timeout.count()));
  }
  GroupRecipe recipe{.backend = std::string(backend)};
  recipe.make = [choices = std::move(choices), timeout, device, options](const StorePtr& keys, int rank, int size,
                                                                         Deadline deadline) {
    return make_group(choices, {.store = keys, .rank = rank, .size = size}, timeout, device, options, deadline);
  };
  return recipe;
}

ProcessGroupFactory find_backend(std::string_view name) {
  return Backends::instance().find(name);
}

std::map<std::string, std::string, std::less<>> absent_backends() {
  std::map<std::string, std::string, std::less<>> absent;
  for (const auto& [name, backend] : Backends::instance().copy()) {
    if (auto why = backend.what_is_missing(); !why.empty()) absent.emplace(name, std::move(why));
  }
  return absent;
}

void register_backend(std::string name, ProcessGroupFactory factory) {
  Backends::instance().add(std::move(name), std::move(factory));
}

std::vector<std::string> backend_names() {
  return Backends::instance().list();
}

ProcessGroupPtr new_group(std::string_view backend, std::chrono::milliseconds timeout, const Device& device,
                          const Options& options, const GroupMembers& members) {
  auto recipe = std::make_shared<GroupRecipe>(recipe_for("new_group", backend, timeout, device, options));
  const auto deadline = Deadline::after(timeout);
  const auto found = find_members(members, timeout);
  const auto host = members.store == nullptr ? store_host("env", Env::read()) : std::nullopt;
  auto group =
      naming_store_host(host, found.rank, [&] { return recipe->make(found.store, found.rank, found.size, deadline); });
  recipe->name = members.name;
  recipe->job = std::static_pointer_cast<PrefixStore>(found.store)->underlying_store();
  if (members.store == nullptr) tell_launcher(found, Env::read());
  GroupAccess::set_recipe(*group, std::move(recipe));
  remember_group(group->id(), group);
  return group;
}

}  // namespace cohort

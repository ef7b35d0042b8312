// SPDX-License-Identifier: BSD-3-Clause
#include <cohort/current_group.h>
#include <cohort/log.h>
#include <cohort/torch/checkpoint.h>

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <optional>
#include <utility>

#include "torch/checkpoint/checkpoint_directory.h"
#include "torch/checkpoint/checkpoint_file.h"
#include "torch/checkpoint/checkpoint_steps.h"
#include "torch/checkpoint/read_folder.h"
#include "torch/checkpoint/state_bytes.h"
#include "torch/state/checkpoint_names.h"

namespace cohort {

/// What is in a checkpoint, as far as this rank needs it.
struct Checkpoint::Loaded {
  StateDict all{};
  bool ours = true;
  std::uint64_t ranks = 0;
  std::uint64_t checksum = 0;
};

Checkpoint::Loaded Checkpoint::read_folder(const std::string& path, int rank, int ranks) const {
  const auto entries = all_entries();
  std::vector<std::function<at::Tensor(const std::string&)>> targets;
  for (const auto& entry : entries) targets.push_back(entry.targets ? entry.targets() : nullptr);
  struct Place {
    std::size_t entry;
    std::string key;
  };
  // Where a tensor of this name belongs on this rank.
  const auto place_of = [&](const std::string& name) -> std::optional<Place> {
    for (std::size_t i = 0; i < entries.size(); ++i) {
      const auto prefix = entries[i].per_rank ? rank_name(entries[i].name, rank) : entries[i].name;
      if (name == prefix) return Place{i, ""};
      if (name.starts_with(prefix + ".")) return Place{i, name.substr(prefix.size() + 1)};
    }
    // In files from elsewhere, names may be those of the module itself.
    const auto is_module = [](const Entry& entry) { return entry.is_module; };
    if (std::count_if(entries.begin(), entries.end(), is_module) != 1) return std::nullopt;
    const auto module = std::find_if(entries.begin(), entries.end(), is_module) - entries.begin();
    return Place{static_cast<std::size_t>(module), name};
  };
  const auto needs = [&](const std::string& name, bool ours) {
    const auto place = place_of(name);
    if (!place.has_value() || (ours && place->key == name)) return !ours;
    const auto& needs_key = entries[place->entry].needs;
    return place->key.empty() || !needs_key || needs_key(place->key);
  };
  const auto target_of = [&](const std::string& name) {
    const auto place = place_of(name);
    return place.has_value() && targets[place->entry] ? targets[place->entry](place->key) : at::Tensor();
  };
  auto content =
      FolderReader{
          .path = path, .secret = secret(), .rank = rank, .ranks = ranks, .needs = needs, .target_of = target_of}
          .read();
  return {.all = std::move(content.state), .ours = content.ours, .ranks = content.ranks, .checksum = content.checksum};
}

Checkpoint::Loaded Checkpoint::read(const std::string& path, ProcessGroup* group,
                                    const CheckpointLoadOptions& options) const {
  const int rank = rank_of(group);
  const int ranks = size_of(group);
  // Rank 0 decides for all: the others may not see the path.
  bool folder = is_folder(path);
  if (group != nullptr) folder = group->broadcast_bytes(folder ? "1" : "0", {.timeout = options.timeout}) == "1";
  const bool each_reads = folder || options.all_ranks_read || ranks == 1;

  Loaded loaded;
  std::string bytes;
  const auto interpret = [&] {
    const CheckpointContent content(std::move(bytes), path, secret());
    file_step(path, [&] {
      loaded.all = read_state(content);
      loaded.ours = content.is_ours();
      loaded.checksum = content.checksum();
      if (loaded.ours) loaded.ranks = loaded.all.get<std::uint64_t>(std::string(ranks_key));
    });
  };
  agree(group, options.timeout, [&] {
    if (folder) {
      loaded = file_step(path, [&] { return read_folder(path, rank, ranks); });
      return;
    }
    if (rank != 0 && !each_reads) return;
    bytes = CheckpointContent::read_file(path, secret());
    if (each_reads) return interpret();
    const CheckpointContent whole(bytes, path, secret());  // damage is detected before the file is sent
  });
  if (!each_reads) {
    bytes = group->broadcast_bytes(bytes, {.timeout = options.timeout});
    agree(group, options.timeout, interpret);
  } else if (ranks > 1) {
    const auto all = group->all_gather_bytes(std::to_string(loaded.checksum), {.timeout = options.timeout});
    for (std::size_t other = 0; other < all.size(); ++other) {
      if (all[other] == all[0]) continue;
      throw CheckpointError(fmt::format("{}: rank {} reads another file than rank 0", path, other),
                            {.group = group->id(), .op = "checkpoint.load", .rank = static_cast<int>(other)});
    }
  }
  return loaded;
}

/// Empty if the object is not in the file.
StateDict Checkpoint::part_for(const Entry& entry, const Loaded& loaded, int rank) const {
  auto part = loaded.all.part(entry.per_rank ? rank_name(entry.name, rank) : entry.name);
  if (loaded.ours || !entry.is_module || !part.tensors().empty()) return part;
  return loaded.all;
}

void Checkpoint::load(const std::string& path, ProcessGroupPtr group, const CheckpointLoadOptions& options) {
  if (path.empty()) throw ValueError("checkpoint: an empty path");
  if (group == nullptr) group = current_process_group();
  const int rank = rank_of(group.get());
  const int ranks = size_of(group.get());
  const auto loaded = read(path, group.get(), options);

  std::vector<std::pair<std::string, std::function<void()>>> actions;
  agree(group.get(), options.timeout, [&] {
    for (const auto& entry : all_entries()) {
      if (loaded.ours && entry.per_rank && loaded.ranks != static_cast<std::uint64_t>(ranks)) {
        if (rank == 0) {
          log(LogLevel::info, fmt::format("checkpoint: {} was saved by {} ranks: '{}' stays as it is on {} ranks", path,
                                          loaded.ranks, entry.name, ranks));
        }
        continue;
      }
      const auto part = part_for(entry, loaded, rank);
      if (loaded.ours ? !loaded.all.has(entry_key(entry.name)) : part.tensors().empty()) {
        if (options.allow_missing || entry.name == random_name) continue;
        throw CheckpointError(fmt::format("{}: there is no '{}' in it", path, entry.name));
      }
      checkpoint_step(path, entry.name, [&] { actions.emplace_back(entry.name, entry.stage(part, options)); });
    }
  });
  agree(group.get(), options.timeout, [&] {
    for (const auto& [name, action] : actions) checkpoint_step(path, name, action);
  });
}

std::optional<std::string> Checkpoint::latest(const std::string& folder, const std::optional<Secret>& secret) {
  const auto* const signer = secret.has_value() ? &*secret : nullptr;
  for (const auto& found : find_checkpoints(folder, signer, /*warns=*/true)) {
    try {
      verify_checkpoint(found.path, signer);
      return found.path;
    } catch (const CheckpointError& e) {
      log(LogLevel::warn, fmt::format("checkpoint: passed over: {}", e.message()));
    }
  }
  return std::nullopt;
}

}  // namespace cohort

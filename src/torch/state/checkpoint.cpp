// SPDX-License-Identifier: BSD-3-Clause
#include <ATen/ATen.h>
#include <cohort/current_group.h>
#include <cohort/log.h>
#include <cohort/torch/checkpoint.h>

#include <fmt/format.h>

#include <cctype>
#include <cerrno>
#include <filesystem>
#include <random>
#include <system_error>

#include "torch/state/checkpoint_directory.h"
#include "torch/state/checkpoint_file.h"
#include "torch/state/checkpoint_names.h"
#include "torch/state/distributed_state.h"
#include "torch/state/read_folder.h"
#include "torch/state/save_plan.h"
#include "torch/state/state_bytes.h"
#include "torch/state/value_text.h"

namespace cohort {

/// What is in a checkpoint, as far as this rank needs it.
struct Checkpoint::Loaded {
  StateDict all{};
  bool ours = true;
  std::uint64_t ranks = 0;
  std::uint64_t checksum = 0;
};

namespace {

/// Runs `body` for one of the objects. Whatever it throws becomes a CheckpointError that names file and object; that of
/// libtorch without its stack trace, which does not help users.
template <class F>
auto checkpoint_step(const std::string& path, const std::string& name, F&& body) {
  const auto refuse = [&](const std::string& why) -> CheckpointError {
    return CheckpointError(fmt::format("{}: '{}': {}", path, name, why));
  };
  try {
    return body();
  } catch (const c10::Error& e) {
    throw refuse(e.what_without_backtrace());
  } catch (const Error& e) {
    throw refuse(e.message());
  } catch (const std::exception& e) {
    throw refuse(e.what());
  }
}

/// The same for what concerns the file as a whole.
template <class F>
auto file_step(const std::string& path, F&& body) {
  try {
    return body();
  } catch (const c10::Error& e) {
    throw CheckpointError(fmt::format("{}: {}", path, e.what_without_backtrace()));
  } catch (const CheckpointError& e) {
    if (e.message().starts_with(path)) throw;
    throw CheckpointError(fmt::format("{}: {}", path, e.message()));
  } catch (const std::exception& e) {
    throw CheckpointError(fmt::format("{}: {}", path, e.what()));
  }
}

/// Throws on all ranks if it throws on one.
void agree(ProcessGroup* group, Timeout timeout, const std::function<void()>& body) {
  if (group == nullptr) return body();
  try {
    group->all_ok(body, timeout);
  } catch (const DistributedError& e) {
    if (e.kind() != ErrorKind::distributed) throw;  // a lost peer stays a lost peer
    throw CheckpointError(e.message(), e.context());
  }
}

int rank_of(const ProcessGroup* group) {
  return group == nullptr ? 0 : group->rank();
}
int size_of(const ProcessGroup* group) {
  return group == nullptr ? 1 : group->size();
}

/// What every file of a checkpoint says about it.
StateDict description(std::uint64_t serial, int ranks) {
  StateDict state;
  state.set(std::string(format_key), checkpoint_format);
  state.set(std::string(serial_key), serial);
  state.set(std::string(ranks_key), ranks);
  // Hugging Face's loaders want to know which library's conventions the names follow.
  state.set_text("format", "pt");
  return state;
}

void write_file(const std::string& path, const StateDict& state, const std::string& seal, const Secret* secret) {
  CheckpointWriter file(path, secret);
  file_step(path, [&] {
    write_state(state, seal, file.seal_bytes(), [&](const void* data, std::size_t count) { file.write(data, count); });
  });
  file.commit();
}

std::string random_id() {
  std::random_device random;
  return fmt::format("{:08x}{:08x}{:08x}{:08x}", random(), random(), random(), random());
}

/// The file name without its numbers: step-100.ckpt and step-2000.ckpt belong to one series.
std::string series_of(const std::string& path) {
  std::string series;
  for (const char c : std::filesystem::path(path).filename().string()) {
    const bool digit = std::isdigit(static_cast<unsigned char>(c)) != 0;
    if (!digit) series += c;
    if (digit && (series.empty() || series.back() != '\0')) series += '\0';
  }
  return series;
}

void prune(const std::string& path, std::uint64_t serial, const CheckpointSaveOptions& options) {
  if (!options.keep.has_value()) return;
  std::size_t older = 0;
  for (const auto& found : find_checkpoints(folder_of(path))) {
    if (found.serial >= serial || series_of(found.path) != series_of(path) || ++older <= *options.keep) continue;
    if (!remove_checkpoint(found.path)) {
      log(LogLevel::warn,
          fmt::format("checkpoint: {} cannot be removed: {}", found.path, std::generic_category().message(errno)));
    }
  }
}

}  // namespace

void Checkpoint::save(const std::string& path, ProcessGroupPtr group, const CheckpointSaveOptions& options) {
  if (path.empty()) throw ValueError("checkpoint: an empty path");
  if (group == nullptr) group = current_process_group();
  if (options.sharded) {
    save_folder(path, group.get(), options);
  } else {
    save_file(path, group.get(), options);
  }
}

void Checkpoint::save_file(const std::string& path, ProcessGroup* group, const CheckpointSaveOptions& options) {
  const auto entries = all_entries();
  for (const auto& entry : entries) {
    if (entry.prepare) entry.prepare();
  }
  // Rank 0 has every rank's part before it opens a file.
  std::string mine;
  agree(group, options.timeout, [&] {
    StateDict state;
    for (const auto& entry : entries) {
      if (!entry.per_rank) continue;
      checkpoint_step(path, entry.name, [&] {
        const auto own = entry.save();
        refuse_distributed(own);
        state.add(rank_name(entry.name, rank_of(group)), own);
      });
    }
    mine = file_step(path, [&] { return state_to_bytes(state); });
  });
  auto all =
      group == nullptr ? std::vector<std::string>{mine} : group->all_gather_bytes(mine, {.timeout = options.timeout});

  agree(group, options.timeout, [&] {
    if (rank_of(group) != 0) return;
    StateDict state;
    for (const auto& entry : entries) {
      if (!entry.per_rank) checkpoint_step(path, entry.name, [&] { state.add(entry.name, held_whole(entry.save())); });
      state.set(entry_key(entry.name), true);
    }
    for (auto& part : all) {
      const auto theirs = file_step(path, [&] { return state_from_bytes(std::move(part), path); });
      for (const auto& [name, tensor] : theirs.tensors()) state.set(name, tensor);
      for (const auto& [key, text] : theirs.values()) state.set_text(key, text);
    }
    make_folder(folder_of(path));  // a failure shows when the file is created
    const auto serial = next_serial(folder_of(path));
    state.add("", description(serial, size_of(group)));
    write_file(path, state, std::string(seal_name), secret());
    prune(path, serial, options);
  });
}

void Checkpoint::save_folder(const std::string& path, ProcessGroup* group, const CheckpointSaveOptions& options) {
  const int rank = rank_of(group);
  const int ranks = size_of(group);
  const auto entries = all_entries();
  for (const auto& entry : entries) {
    if (entry.prepare && !entry.save_share) entry.prepare();
  }
  std::string plan;  // serial, and the name by which the files of this save recognise each other
  agree(group, options.timeout, [&] {
    if (rank != 0) return;
    const auto serial = next_serial(folder_of(path));
    begin_folder(path);
    plan = fmt::format("{} {}", serial, random_id());
  });
  if (group != nullptr) plan = group->broadcast_bytes(plan, {.timeout = options.timeout});
  const auto space = plan.find(' ');
  const auto serial = text_to_unsigned(std::string_view(plan).substr(0, space)).value_or(0);
  const auto id = string_text(plan.substr(space + 1));
  try {
    StateDict state;        // what this rank writes
    StateDict distributed;  // of which it writes its part
    StateDict shares;       // likewise; other ranks may have others
    std::string held;
    agree(group, options.timeout, [&] {
      for (const auto& entry : entries) {
        checkpoint_step(path, entry.name, [&] {
          const auto own = split_state(entry.save_share ? entry.save_share() : entry.save());
          if (entry.per_rank) {
            refuse_distributed(own.distributed);
            state.add(rank_name(entry.name, rank), own.plain);
          } else {
            (entry.save_share ? shares : distributed).add(entry.name, own.distributed);
            if (rank == 0 || entry.save_share) state.add(entry.name, own.plain);
          }
        });
        state.set(entry_key(entry.name), true);
      }
      file_step(path, [&] {
        auto all = held_tensors(distributed, /*everywhere=*/true);
        all.merge(held_tensors(shares, /*everywhere=*/false));
        held = held_to_text(all);
      });
      distributed.add("", shares);
    });
    const auto all_held =
        group == nullptr ? std::vector<std::string>{held} : group->all_gather_bytes(held, {.timeout = options.timeout});
    agree(group, options.timeout, [&] {
      file_step(path, [&] {
        std::vector<HeldTensors> all;
        for (const auto& each : all_held) all.push_back(held_from_text(each));
        add_parts(state, distributed, boxes_to_write(all, rank));
        if (rank == 0) check_held(all);
      });
      state.add("", description(serial, ranks));
      state.set_text(std::string(save_key), id);
      state.set(std::string(shard_key), rank);
      write_file(rank_file(partial_folder(path), rank, ranks), state, fmt::format("{}.{}", seal_name, rank), secret());
    });
    agree(group, options.timeout, [&] {
      if (rank != 0) return;
      commit_folder(path, ranks, id);
      prune(path, serial, options);
    });
  } catch (...) {
    if (rank == 0) discard_folder(path);
    throw;
  }
}

Checkpoint::Loaded Checkpoint::read_folder(const std::string& path, int rank, int ranks) const {
  const auto entries = all_entries();
  std::vector<std::function<at::Tensor(const std::string&)>> targets;
  for (const auto& entry : entries) targets.push_back(entry.targets ? entry.targets() : nullptr);
  // The entry that a tensor of this name belongs to, and its key there; -1 if there is none on this rank.
  const auto place_of = [&](const std::string& name) -> std::pair<std::ptrdiff_t, std::string> {
    for (std::size_t i = 0; i < entries.size(); ++i) {
      const auto prefix = entries[i].per_rank ? rank_name(entries[i].name, rank) : entries[i].name;
      if (name == prefix) return {static_cast<std::ptrdiff_t>(i), ""};
      if (name.starts_with(prefix + ".")) return {static_cast<std::ptrdiff_t>(i), name.substr(prefix.size() + 1)};
    }
    return {-1, name};
  };
  const FolderReader reader{.path = path,
                            .secret = secret(),
                            .rank = rank,
                            .ranks = ranks,
                            .needs =
                                [&](const std::string& name, bool ours) {
                                  const auto [entry, key] = place_of(name);
                                  if (entry < 0) return !ours;
                                  const auto& needs = entries[static_cast<std::size_t>(entry)].needs;
                                  return key.empty() || !needs || needs(key);
                                },
                            .target_of = [&](const std::string& name) -> at::Tensor {
                              const auto [entry, key] = place_of(name);
                              if (entry >= 0 && targets[static_cast<std::size_t>(entry)])
                                return targets[static_cast<std::size_t>(entry)](key);
                              return {};
                            }};
  auto content = reader.read();
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
  for (const auto& found : find_checkpoints(folder, /*warns=*/true)) {
    try {
      verify_checkpoint(found.path, secret.has_value() ? &*secret : nullptr);
      return found.path;
    } catch (const CheckpointError& e) {
      log(LogLevel::warn, fmt::format("checkpoint: passed over: {}", e.message()));
    }
  }
  return std::nullopt;
}

}  // namespace cohort

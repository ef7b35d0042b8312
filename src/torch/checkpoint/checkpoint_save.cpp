// SPDX-License-Identifier: BSD-3-Clause
#include <cohort/current_group.h>
#include <cohort/log.h>
#include <cohort/torch/checkpoint.h>

#include <fmt/format.h>

#include <cctype>
#include <cerrno>
#include <filesystem>
#include <string_view>
#include <system_error>
#include <utility>

#include "torch/checkpoint/checkpoint_directory.h"
#include "torch/checkpoint/checkpoint_file.h"
#include "torch/checkpoint/checkpoint_steps.h"
#include "torch/checkpoint/seal.h"
#include "torch/checkpoint/state_bytes.h"
#include "torch/state/checkpoint_names.h"
#include "torch/state/distributed_state.h"
#include "torch/state/save_plan.h"
#include "torch/state/value_text.h"

namespace cohort {

namespace {

/// What every file of a checkpoint says about it.
StateDict description(std::uint64_t serial, int ranks, const Secret* secret) {
  StateDict state;
  state.set(std::string(format_key), checkpoint_format);
  state.set(std::string(serial_key), serial);
  if (secret != nullptr) state.set(std::string(serial_proof_key), serial_proof(serial, *secret));
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

/// Whoever knows no secret deletes nothing that is signed, and nobody else's count beside those that are.
void prune(const std::string& path, std::uint64_t serial, const CheckpointSaveOptions& options, const Secret* secret) {
  if (!options.keep.has_value()) return;
  std::size_t older = 0;
  auto last = serial;
  for (const auto& found : find_checkpoints(folder_of(path), secret)) {
    if (found.serial >= serial || found.is_signed != (secret != nullptr)) continue;
    if (series_of(found.path) != series_of(path)) continue;
    // A copy does not count as another one.
    if (found.serial != std::exchange(last, found.serial)) ++older;
    if (older <= *options.keep) continue;
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
    const auto serial = next_serial(folder_of(path), secret());
    state.add("", description(serial, size_of(group), secret()));
    write_file(path, state, std::string(seal_name), secret());
    prune(path, serial, options, secret());
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
    const auto serial = next_serial(folder_of(path), secret());
    begin_folder(path);
    plan = fmt::format("{} {}", serial, new_save_id());
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
      state.add("", description(serial, ranks, secret()));
      state.set_text(std::string(save_key), id);
      state.set(std::string(shard_key), rank);
      write_file(rank_file(partial_folder(path), rank, ranks), state, fmt::format("{}.{}", seal_name, rank), secret());
    });
    agree(group, options.timeout, [&] {
      if (rank != 0) return;
      commit_folder(path, ranks, id);
      prune(path, serial, options, secret());
    });
  } catch (...) {
    if (rank == 0) discard_folder(path);
    throw;
  }
}

}  // namespace cohort

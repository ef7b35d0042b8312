// SPDX-License-Identifier: BSD-3-Clause
#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <cohort/current_group.h>
#include <cohort/log.h>
#include <cohort/torch/checkpoint.h>
#include <torch/nn/module.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <cstring>
#include <filesystem>
#include <iterator>
#include <mutex>
#include <sstream>
#include <string_view>

#include "torch/archive.h"
#include "torch/state/checkpoint_file.h"

namespace cohort {

namespace {

using Named = std::vector<std::pair<std::string, at::Tensor>>;

constexpr std::string_view wrapped_prefix = "module.";
constexpr std::string_view random_name = "random state";

std::string shared_section(const std::string& name) {
  return "all/" + name;
}
std::string rank_section(const std::string& name, int rank) {
  return fmt::format("rank/{}/{}", rank, name);
}

/// Runs `body`; a libtorch error is reported without its stack trace, which does not help users.
template <class F>
auto checkpoint_step(const std::string& path, const std::string& name, F&& body) {
  try {
    return body();
  } catch (const c10::Error& e) {
    throw CheckpointError(fmt::format("{}: '{}': {}", path, name, e.what_without_backtrace()));
  } catch (const CheckpointError& e) {
    throw CheckpointError(fmt::format("{}: {}", path, e.message()));
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

/// A copy in its own storage: a view would bring the whole storage into the file.
at::Tensor storable(const at::Tensor& tensor) {
  auto plain = tensor.detach();
  if (plain.layout() != at::kStrided) return plain;
  plain = plain.cpu();
  return plain.storage().nbytes() == plain.nbytes() ? plain : plain.clone();
}

Named module_state(const torch::nn::Module& module) {
  Named state;
  for (const auto& item : module.named_parameters()) state.emplace_back(item.key(), item.value());
  for (const auto& item : module.named_buffers()) state.emplace_back(item.key(), item.value());
  std::erase_if(state, [](const auto& item) { return !item.second.defined(); });
  return state;
}

void write_named(torch::serialize::OutputArchive& archive, const Named& state) {
  std::vector<std::string> names;
  std::vector<at::Tensor> tensors;
  for (const auto& [name, tensor] : state) {
    names.push_back(name);
    tensors.push_back(storable(tensor));
  }
  archive.write("names", c10::IValue(names));
  archive.write("tensors", c10::IValue(tensors));
}

Named read_named(torch::serialize::InputArchive& archive) {
  const auto names = read_value<std::vector<std::string>>(archive, "names");
  const auto tensors = read_value<std::vector<at::Tensor>>(archive, "tensors");
  if (names.size() != tensors.size()) throw CheckpointError("names and tensors differ in number");
  Named state;
  for (std::size_t i = 0; i < names.size(); ++i) state.emplace_back(names[i], tensors[i]);
  return state;
}

bool all_wrapped(const Named& state) {
  return !state.empty() && std::all_of(state.begin(), state.end(),
                                       [](const auto& item) { return item.first.starts_with(wrapped_prefix); });
}

/// Pairs of the module's tensor and the saved one that goes into it.
std::vector<std::pair<at::Tensor, at::Tensor>> match(const std::string& name, const Named& own, Named saved,
                                                     bool ignore_prefix) {
  if (ignore_prefix && all_wrapped(saved) != all_wrapped(own)) {
    const bool strip = all_wrapped(saved);
    for (auto& [key, tensor] : saved)
      key = strip ? key.substr(wrapped_prefix.size()) : std::string(wrapped_prefix) + key;
  }
  std::string problems;
  const auto problem = [&](const std::string& text) { problems += (problems.empty() ? "" : "; ") + text; };
  std::vector<std::pair<at::Tensor, at::Tensor>> pairs;
  for (const auto& [key, tensor] : own) {
    const auto it =
        std::find_if(saved.begin(), saved.end(), [&, &wanted = key](const auto& x) { return x.first == wanted; });
    if (it == saved.end()) {
      problem(fmt::format("{} is missing", key));
    } else if (it->second.sizes() != tensor.sizes()) {
      problem(fmt::format("{} has shape [{}] there and [{}] here", key, fmt::join(it->second.sizes(), ", "),
                          fmt::join(tensor.sizes(), ", ")));
    } else {
      pairs.emplace_back(tensor, it->second);
    }
  }
  for (const auto& [key, tensor] : saved) {
    if (std::none_of(own.begin(), own.end(), [&, &wanted = key](const auto& x) { return x.first == wanted; })) {
      problem(fmt::format("{} is not part of the module", key));
    }
  }
  if (!problems.empty()) throw CheckpointError(fmt::format("'{}' does not fit: {}", name, problems));
  return pairs;
}

/// For each group its number of parameters, then for each parameter its number of dimensions and its sizes.
std::vector<std::int64_t> optimizer_shapes(const torch::optim::Optimizer& optimizer) {
  std::vector<std::int64_t> numbers;
  for (const auto& group : optimizer.param_groups()) {
    numbers.push_back(static_cast<std::int64_t>(group.params().size()));
    for (const auto& param : group.params()) {
      numbers.push_back(param.dim());
      numbers.insert(numbers.end(), param.sizes().begin(), param.sizes().end());
    }
  }
  return numbers;
}

std::string archive_bytes(const std::function<void(torch::serialize::OutputArchive&)>& fill) {
  torch::serialize::OutputArchive archive;
  fill(archive);
  std::string bytes;
  archive.save_to([&](const void* data, std::size_t count) {
    bytes.append(static_cast<const char*>(data), count);
    return count;
  });
  return bytes;
}

at::Tensor generator_state(at::Generator generator) {
  const std::lock_guard lock(generator.mutex());
  return generator.get_state();
}
void set_generator_state(at::Generator generator, const at::Tensor& state) {
  const std::lock_guard lock(generator.mutex());
  generator.set_state(state);
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

void prune(const std::string& path, std::uint64_t serial, std::size_t keep) {
  std::size_t older = 0;
  for (const auto& found : find_checkpoints(folder_of(path))) {
    if (found.serial >= serial || series_of(found.path) != series_of(path) || ++older <= keep) continue;
    std::error_code error;
    if (!std::filesystem::remove(found.path, error)) {
      log(LogLevel::warn, fmt::format("checkpoint: {} cannot be removed: {}", found.path, error.message()));
    }
  }
}

}  // namespace

void Checkpoint::add_entry(Entry entry) {
  if (entry.name.empty()) throw ValueError("checkpoint: an empty name");
  for (const auto& each : entries_) {
    if (each.name == entry.name) throw ValueError(fmt::format("checkpoint: there is a '{}' already", entry.name));
  }
  entries_.push_back(std::move(entry));
}

void Checkpoint::add_module(const std::string& name, std::shared_ptr<torch::nn::Module> owned,
                            torch::nn::Module& module) {
  Entry entry{.name = name};
  entry.save = [&module](Out& archive) { write_named(archive, module_state(module)); };
  entry.check = [&module, name](In& archive, const CheckpointLoadOptions& options) {
    match(name, module_state(module), read_named(archive), options.ignore_module_prefix);
  };
  entry.load = [&module, name](In& archive, const CheckpointLoadOptions& options) {
    const at::NoGradGuard no_grad;
    for (auto& [own, saved] : match(name, module_state(module), read_named(archive), options.ignore_module_prefix)) {
      own.copy_(saved);
    }
  };
  // The module may still be moved to another device, so this is asked when it is needed.
  auto devices = [owned = std::move(owned), &module] {
    std::vector<at::Device> all;
    for (const auto& [key, tensor] : module_state(module)) {
      if (std::find(all.begin(), all.end(), tensor.device()) == all.end()) all.push_back(tensor.device());
    }
    return all;
  };
  add_entry(std::move(entry));
  devices_.emplace_back(std::move(devices));
}

void Checkpoint::add_optimizer(const std::string& name, torch::optim::Optimizer& optimizer,
                               std::function<void()> prepare) {
  Entry entry{.name = name};
  entry.prepare = std::move(prepare);
  entry.device = [&optimizer]() -> std::optional<at::Device> {
    for (const auto& group : optimizer.param_groups()) {
      if (!group.params().empty()) return group.params().front().device();
    }
    return std::nullopt;
  };
  entry.save = [&optimizer](Out& archive) {
    archive.write("shapes", c10::IValue(optimizer_shapes(optimizer)));
    // libtorch writes the options of a group but does not read them, so the learning rate would be lost.
    std::size_t number = 0;
    for (const auto& group : optimizer.param_groups()) {
      Out options(archive.compilation_unit());
      group.options().serialize(options);
      archive.write("options" + std::to_string(number++), options);
    }
    Out state(archive.compilation_unit());
    optimizer.save(state);
    archive.write("state", state);
  };
  // libtorch identifies parameters by their order, so a mismatch would only show in the middle of a step.
  entry.check = [&optimizer, name](In& archive, const CheckpointLoadOptions&) {
    if (read_value<std::vector<std::int64_t>>(archive, "shapes") != optimizer_shapes(optimizer)) {
      throw CheckpointError(
          fmt::format("'{}' does not fit: the optimizer there had other parameters, in groups, "
                      "number, order or shape",
                      name));
    }
  };
  entry.load = [&optimizer](In& archive, const CheckpointLoadOptions&) {
    std::size_t number = 0;
    for (auto& group : optimizer.param_groups()) {
      In options;
      archive.read("options" + std::to_string(number++), options);
      group.options().serialize(options);
    }
    In state;
    archive.read("state", state);
    optimizer.state().clear();  // load() adds to the state
    optimizer.load(state);
  };
  add_entry(std::move(entry));
}

void Checkpoint::add_tensor(const std::string& name, at::Tensor tensor) {
  if (!tensor.defined()) throw ValueError(fmt::format("checkpoint: '{}' is an undefined tensor", name));
  Entry entry{.name = name};
  entry.save = [tensor, name](Out& archive) { write_named(archive, {{name, tensor}}); };
  entry.check = [tensor, name](In& archive, const CheckpointLoadOptions&) {
    match(name, {{name, tensor}}, read_named(archive), false);
  };
  entry.load = [tensor, name](In& archive, const CheckpointLoadOptions&) {
    const at::NoGradGuard no_grad;
    for (auto& [own, saved] : match(name, {{name, tensor}}, read_named(archive), false)) own.copy_(saved);
  };
  add_entry(std::move(entry));
}

void Checkpoint::add_generator(const std::string& name, at::Generator generator) {
  Entry entry{.name = name};
  entry.per_rank = true;
  entry.save = [generator](Out& archive) { archive.write("state", generator_state(generator), true); };
  entry.load = [generator](In& archive, const CheckpointLoadOptions&) {
    at::Tensor state;
    archive.read("state", state, true);
    set_generator_state(generator, state);
  };
  add_entry(std::move(entry));
}

void Checkpoint::add_value(const std::string& name, std::function<c10::IValue()> get,
                           std::function<void(const c10::IValue&)> check, std::function<void(const c10::IValue&)> set) {
  Entry entry{.name = name};
  const auto read = [](In& archive) {
    c10::IValue value;
    archive.read("value", value);
    return value;
  };
  entry.save = [get = std::move(get)](Out& archive) { archive.write("value", get()); };
  entry.check = [read, check = std::move(check)](In& archive, const CheckpointLoadOptions&) { check(read(archive)); };
  entry.load = [read, set = std::move(set)](In& archive, const CheckpointLoadOptions&) { set(read(archive)); };
  add_entry(std::move(entry));
}

std::vector<at::Device> Checkpoint::devices() const {
  std::vector<at::Device> all{at::Device(at::kCPU)};
  for (const auto& each : devices_) {
    for (const auto device : each()) {
      if (std::find(all.begin(), all.end(), device) == all.end()) all.push_back(device);
    }
  }
  return all;
}

/// Stored by number and not by name: rank 1's cuda:1 may be another device the next time.
Checkpoint::Entry Checkpoint::random_entry() const {
  Entry entry{.name = std::string(random_name), .per_rank = true};
  entry.save = [this](Out& archive) {
    std::size_t number = 0;
    for (const auto device : devices()) {
      archive.write("generator" + std::to_string(number++),
                    generator_state(at::globalContext().defaultGenerator(device)), true);
    }
  };
  entry.load = [this](In& archive, const CheckpointLoadOptions&) {
    std::size_t number = 0;
    for (const auto device : devices()) {
      at::Tensor state;
      if (!archive.try_read("generator" + std::to_string(number++), state, true)) continue;
      set_generator_state(at::globalContext().defaultGenerator(device), state);
    }
  };
  return entry;
}

void Checkpoint::save(const std::string& path, ProcessGroupPtr group, const CheckpointSaveOptions& options) {
  if (path.empty()) throw ValueError("checkpoint: an empty path");
  if (group == nullptr) group = current_process_group();
  const int ranks = group == nullptr ? 1 : group->size();
  const bool writes = group == nullptr || group->rank() == 0;

  auto entries = entries_;
  if (options_.random_state) entries.push_back(random_entry());
  for (const auto& entry : entries) {
    if (entry.prepare) entry.prepare();
  }
  // Rank 0 has every rank's part before it opens a file.
  std::vector<std::pair<std::string, std::string>> parts;
  for (const auto& entry : entries) {
    if (!entry.per_rank) continue;
    std::string mine;
    agree(group.get(), options.timeout,
          [&] { mine = checkpoint_step(path, entry.name, [&] { return archive_bytes(entry.save); }); });
    auto all =
        group == nullptr ? std::vector<std::string>{mine} : group->all_gather_bytes(mine, {.timeout = options.timeout});
    for (int rank = 0; writes && rank < ranks; ++rank) {
      parts.emplace_back(rank_section(entry.name, rank), std::move(all[static_cast<std::size_t>(rank)]));
    }
  }

  agree(group.get(), options.timeout, [&] {
    if (!writes) return;
    make_folder(folder_of(path));  // a failure shows when the file is created
    const auto before = find_checkpoints(folder_of(path));
    const auto serial = before.empty() ? 1 : before.front().serial + 1;
    CheckpointWriter file(path, serial, static_cast<std::uint64_t>(ranks));
    for (const auto& entry : entries) {
      if (entry.per_rank) continue;
      file.begin_section(shared_section(entry.name));
      checkpoint_step(path, entry.name, [&] {
        Out archive;
        entry.save(archive);
        // libtorch's writer calls this from a destructor as well, which hides errors: it must not throw.
        std::exception_ptr failure;
        archive.save_to([&](const void* data, std::size_t count) {
          if (failure != nullptr) return count;
          try {
            file.write(data, count);
          } catch (...) {
            failure = std::current_exception();
          }
          return count;
        });
        if (failure != nullptr) std::rethrow_exception(failure);
      });
    }
    for (const auto& [name, bytes] : parts) {
      file.begin_section(name);
      file.write(bytes.data(), bytes.size());
    }
    file.commit();
    if (options.keep.has_value()) prune(path, serial, *options.keep);
  });
}

void Checkpoint::load(const std::string& path, ProcessGroupPtr group, const CheckpointLoadOptions& options) {
  if (group == nullptr) group = current_process_group();
  const int rank = group == nullptr ? 0 : group->rank();
  const int ranks = group == nullptr ? 1 : group->size();
  const bool reads = rank == 0 || options.all_ranks_read;

  std::optional<CheckpointContent> content;
  std::string bytes;
  agree(group.get(), options.timeout, [&] {
    if (!reads) return;
    bytes = CheckpointContent::read_file(path);
    if (ranks == 1 || options.all_ranks_read) {
      content.emplace(std::move(bytes), path);
      return;
    }
    const CheckpointContent whole(bytes, path);  // damage is detected before the file is sent
  });
  if (!content) {
    bytes = group->broadcast_bytes(bytes, {.timeout = options.timeout});
  } else if (ranks > 1) {
    const auto checksum = std::to_string(content->checksum());
    const auto all = group->all_gather_bytes(checksum, {.timeout = options.timeout});
    for (std::size_t other = 0; other < all.size(); ++other) {
      if (all[other] == all[0]) continue;
      throw CheckpointError(fmt::format("{}: rank {} reads another file than rank 0", path, other),
                            {.group = group->id(), .op = "checkpoint.load", .rank = static_cast<int>(other)});
    }
  }

  auto entries = entries_;
  if (options_.random_state) entries.push_back(random_entry());
  std::vector<std::pair<const Entry*, In>> found;
  agree(group.get(), options.timeout, [&] {
    if (!content) content.emplace(std::move(bytes), path);
    const bool same_ranks = content->ranks() == static_cast<std::uint64_t>(ranks);
    for (const auto& entry : entries) {
      const auto section = entry.per_rank ? rank_section(entry.name, rank) : shared_section(entry.name);
      if (entry.per_rank && !same_ranks) {
        if (rank == 0) {
          log(LogLevel::info, fmt::format("checkpoint: {} was saved by {} ranks: '{}' stays as it is on {} ranks", path,
                                          content->ranks(), entry.name, ranks));
        }
        continue;
      }
      if (!content->has(section)) {
        if (options.allow_missing || entry.name == random_name) continue;
        throw CheckpointError(fmt::format("{}: there is no '{}' in it", path, entry.name));
      }
      checkpoint_step(path, entry.name, [&] {
        const auto data = content->section(section);
        In archive;
        // The devices of the writer may not exist here: load to the device of the optimizer's parameters, or to the
        // host.
        const auto device = entry.device ? entry.device() : std::nullopt;
        archive.load_from(data.data(), data.size(), device.value_or(at::Device(at::kCPU)));
        if (entry.check) entry.check(archive, options);
        found.emplace_back(&entry, std::move(archive));
      });
    }
  });
  agree(group.get(), options.timeout, [&] {
    for (auto& [entry, archive] : found) {
      checkpoint_step(path, entry->name, [&, &each = *entry, &from = archive] { each.load(from, options); });
    }
  });
}

std::optional<std::string> Checkpoint::latest(const std::string& folder) {
  for (const auto& found : find_checkpoints(folder)) {
    try {
      const CheckpointContent whole(CheckpointContent::read_file(found.path), found.path);
      return found.path;
    } catch (const CheckpointError& e) {
      log(LogLevel::warn, fmt::format("checkpoint: passed over: {}", e.message()));
    }
  }
  return std::nullopt;
}

}  // namespace cohort

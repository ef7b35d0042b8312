// SPDX-License-Identifier: BSD-3-Clause
//
// Checkpoints: one rank writes, all ranks load, and a crash at any moment leaves the last checkpoint intact.
//
//   cohort::Checkpoint checkpoint;
//   checkpoint.add("model", ddp.module());            // a module, its shared_ptr or holder
//   checkpoint.add("optimizer", optimizer);           // with its options, so the learning rate is restored too
//   checkpoint.add("sampler", sampler);               // anything with state_dict and load_state_dict (state_dict.h)
//   checkpoint.add("epoch", epoch);                   // numbers, strings, tensors
//
//   if (auto last = cohort::Checkpoint::latest("run")) checkpoint.load(*last, pg);
//   ...
//   checkpoint.save("run/step-" + std::to_string(step) + ".safetensors", pg, {.keep = 2});
//
// The checkpoint refers to what was added and does not copy it. Modules, tensors and generators are kept alive; other
// objects must outlive the Checkpoint. save and load are collective: all ranks of the group call them, and they succeed
// on all ranks or throw on all. Rank 0's state is saved; with DistributedDataParallel modules, buffers and optimizers
// are the same on all ranks. Loading copies into the modules' tensors, which autograd sees as a change in place.
//
// The random state of each rank is part of the checkpoint (the host's default generator, and those of the devices and
// meshes on which the modules are), so that a resumed run computes the same bits as an uninterrupted one, dropout
// included. If a run is resumed with another number of ranks, each rank keeps its current random state.
//
// Distributed tensors (dtensor.h), be they parameters, buffers, moments of an optimizer or tensors of their own, are
// saved with `sharded`, which makes the path a folder: each rank writes its parts, and parts that several ranks hold
// are written once. Whatever mesh and placements the tensors have when they are loaded, or none in a single process,
// each rank takes its part of them, with the same bits; and a checkpoint of plain tensors loads into distributed ones.
//
//   auto mesh = cohort::init_device_mesh("cpu", {2, 2}, {"dp", "tp"});
//   cohort::parallelize_module(*net, mesh["tp"], {{"widen", cohort::ColwiseParallel()}});
//   cohort::Checkpoint parallel;
//   parallel.add("model", net);
//   if (auto last = cohort::Checkpoint::latest("run")) parallel.load(*last, pg);       // saved on 4 x 1, say
//   parallel.save("run/step-100", pg, {.sharded = true});
//
// No rank holds a whole distributed tensor for this, except when a ZeroOptimizer or an object of your own is loaded,
// which get whole tensors and take their part themselves. While DistributedDataParallel wraps the module, its
// parameters and their optimizer's state are saved as what they are, distributed. A Partial tensor is a
// CheckpointError: no rank has its values.
//
// Format. A checkpoint is a safetensors file: a JSON header and bytes. Python's safetensors opens it, with tensors
// named "model.layer1.weight" and numbers in the metadata; and a safetensors file from elsewhere can be loaded into a
// module. Nothing in such a file can be executed; sizes are checked against the file before memory is taken. Files are
// regular files: a link, a pipe or a device is refused. docs/checkpoints.md describes the names.
//
// A file is written without a name (or as PATH.partial, if the file system does not support that), synchronised to
// disk, and given its name in one step; then the folder is synchronised. A file that has its name is therefore
// complete, also after a power cut. A checksum finds damage. With CheckpointOptions::secret the file also has an HMAC:
// then only files of those who know the secret are loaded. An incomplete, damaged or foreign file is a CheckpointError
// that names it, before anything is loaded.
//
// Optimizers are those of libtorch and ZeroOptimizer. Another class, also one that is derived from them, needs
// state_dict and load_state_dict; without them add throws a CheckpointError that says so. Of a scheduler derived from
// torch::optim::LRScheduler the number of its steps is saved.
#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <cohort/export.h>
#include <cohort/process_group.h>
#include <cohort/secret.h>
#include <cohort/torch/checkpoint_error.h>
#include <cohort/torch/state_dict.h>
#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>
#include <torch/optim/schedulers/lr_scheduler.h>

#include <concepts>
#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace cohort {

struct CheckpointOptions {
  bool random_state = true;
  /// Signs what is saved with an HMAC, and refuses to load what is not signed with this secret; the file is verified
  /// before anything in it is interpreted. Keep the secret where Secret::load can read it: a resumed run needs it.
  std::optional<Secret> secret{};
};

struct CheckpointSaveOptions {
  /// The number of older checkpoints to keep beside the new one; nullopt: all. Only those whose names differ in numbers
  /// alone are deleted: saving step-300.ckpt may delete step-100.ckpt, but not best.ckpt. With a secret, those that are
  /// signed with it count and are deleted alone; without, those that are not signed.
  std::optional<std::size_t> keep{};
  /// The path becomes a folder with a file for each rank and an index. A folder that is there already is replaced if it
  /// is empty or has a checkpoint in it, whole or torn, and nothing else; otherwise it is a CheckpointError. Each rank
  /// writes its own state: add_per_rank's objects, its share of a ZeroOptimizer and its parts of distributed tensors,
  /// which no rank has to hold as a whole; the rest is in rank 0's file. All ranks must see the folder, and all ranks
  /// of a mesh save its tensors. Without it, a distributed tensor is a CheckpointError unless rank 0 holds all of it.
  bool sharded = false;
  /// How long the other ranks wait while rank 0 writes to disk; default: the group's timeout.
  Timeout timeout{};
};

struct CheckpointLoadOptions {
  /// The names in a module that is wrapped by DistributedDataParallel start with "module."; they match those of the
  /// bare module, and the other way round.
  bool ignore_module_prefix = true;
  /// Objects that were added but are not in the file are left as they are; otherwise they are a CheckpointError.
  bool allow_missing = false;
  /// Tensors of another dtype than here are converted; otherwise they are a CheckpointError. Complex ones go into
  /// complex ones alone: a conversion would drop the imaginary parts. The state of an optimizer keeps the dtype in
  /// which it was saved.
  bool convert_dtypes = false;
  /// Every rank reads the file itself, and it is checked that all read the same one. Otherwise only rank 0 needs the
  /// file and sends it to the others. A folder is always read by every rank: of its files, those that have something
  /// for this rank.
  bool all_ranks_read = false;
  Timeout timeout{};
};

class COHORT_API Checkpoint {
 public:
  explicit Checkpoint(CheckpointOptions options = {}) : options_(std::move(options)) {}

  /// Accepts the objects listed above. A ValueError for a name that is in use, that lies inside another one ("model.a"
  /// beside "model"), or that begins with "cohort.".
  template <class T>
  void add(const std::string& name, T&& object);
  /// For state that differs between ranks, such as error feedback or a generator of your own: every rank's state is in
  /// the file and is restored on that rank. With another number of ranks it is left as it is.
  template <class T>
  void add_per_rank(const std::string& name, T&& object);

  /// Null: current_process_group(); if there is none, this process saves alone. Folders are created as needed.
  void save(const std::string& path, ProcessGroupPtr process_group = nullptr,
            const CheckpointSaveOptions& options = {});
  /// A file, or a folder with files and an index, of Cohort or from elsewhere. From a file that Cohort did not write
  /// modules take the tensors whose names begin with their own and a dot; if there are none, all tensors. The file, its
  /// names and its shapes are checked on all ranks before anything is changed.
  void load(const std::string& path, ProcessGroupPtr process_group = nullptr,
            const CheckpointLoadOptions& options = {});

  /// The newest intact checkpoint in a folder, in the order in which they were saved; damaged ones, those that do not
  /// fit into memory, those with control characters in their names, and with a secret those that are not signed with it
  /// are skipped with a warning. Reads the file once.
  static std::optional<std::string> latest(const std::string& folder, const std::optional<Secret>& secret = {});

 private:
  struct Entry {
    std::string name{};
    std::function<StateDict()> save{};
    /// Checks what is to be loaded and returns the action that loads it.
    std::function<std::function<void()>(const StateDict&, const CheckpointLoadOptions&)> stage{};
    std::function<void()> prepare{};                  ///< before save, on all ranks
    std::function<StateDict()> save_share{};          ///< this rank's part, if the state is spread over the ranks
    std::function<bool(const std::string&)> needs{};  ///< whether this rank loads that key; empty: all
    /// Finds the tensor into which a key is loaded: undefined if that is not known.
    std::function<std::function<at::Tensor(const std::string&)>()> targets{};
    std::function<std::vector<at::Tensor>()> tensors{};  ///< the random state of their devices and meshes matters
    bool is_module = false;
    bool per_rank = false;
  };
  struct Loaded;

  void add_entry(Entry entry);
  template <class T>
  static Entry entry_of(T&& object);
  template <class T>
  static Entry object_entry(T& object);
  template <class T>
  static Entry value_entry(T& value);
  static Entry module_entry(std::shared_ptr<torch::nn::Module> owned, torch::nn::Module& module);
  static Entry optimizer_entry(torch::optim::Optimizer& optimizer);
  static Entry scheduler_entry(torch::optim::LRScheduler& scheduler);
  static Entry tensor_entry(at::Tensor tensor);
  static Entry generator_entry(at::Generator generator);
  Entry random_entry() const;
  std::vector<Entry> all_entries() const;
  const Secret* secret() const { return options_.secret.has_value() ? &*options_.secret : nullptr; }

  void save_file(const std::string& path, ProcessGroup* group, const CheckpointSaveOptions& options);
  void save_folder(const std::string& path, ProcessGroup* group, const CheckpointSaveOptions& options);
  Loaded read(const std::string& path, ProcessGroup* group, const CheckpointLoadOptions& options) const;
  Loaded read_folder(const std::string& path, int rank, int ranks) const;
  StateDict part_for(const Entry& entry, const Loaded& loaded, int rank) const;

  CheckpointOptions options_;
  std::vector<Entry> entries_;
};

template <class T>
Checkpoint::Entry Checkpoint::object_entry(T& object) {
  Entry entry;
  entry.save = [&object]() -> StateDict { return std::as_const(object).state_dict(); };
  entry.stage = [&object](const StateDict& state, const CheckpointLoadOptions&) -> std::function<void()> {
    if constexpr (requires { std::as_const(object).check_state_dict(state); }) object.check_state_dict(state);
    return [&object, state] { object.load_state_dict(state); };
  };
  if constexpr (requires { object.consolidate_state(0); }) entry.prepare = [&object] { object.consolidate_state(0); };
  if constexpr (requires { object.local_state_dict(); }) {
    entry.save_share = [&object] { return object.local_state_dict(); };
    entry.needs = [&object](const std::string& key) { return object.needs_state(key); };
  }
  return entry;
}

template <class T>
Checkpoint::Entry Checkpoint::value_entry(T& value) {
  Entry entry;
  entry.save = [&value] {
    StateDict state;
    state.set("", value);
    return state;
  };
  entry.stage = [&value](const StateDict& state, const CheckpointLoadOptions&) -> std::function<void()> {
    return [&value, saved = state.get<T>("")] { value = saved; };
  };
  return entry;
}

template <class T>
Checkpoint::Entry Checkpoint::entry_of(T&& object) {
  using Plain = std::remove_cvref_t<T>;
  if constexpr (std::is_convertible_v<T, std::shared_ptr<torch::nn::Module>>) {
    std::shared_ptr<torch::nn::Module> module = object;
    auto* const pointer = module.get();
    if (pointer == nullptr) throw ValueError("checkpoint: a null module");
    return module_entry(std::move(module), *pointer);
  } else if constexpr (requires { std::shared_ptr<torch::nn::Module>(object.ptr()); }) {
    std::shared_ptr<torch::nn::Module> module = object.ptr();
    auto* const pointer = module.get();
    if (pointer == nullptr) throw ValueError("checkpoint: a null module");
    return module_entry(std::move(module), *pointer);
  } else if constexpr (std::derived_from<Plain, at::Tensor>) {
    return tensor_entry(object);
  } else if constexpr (std::is_same_v<Plain, at::Generator>) {
    return generator_entry(object);
  } else {
    static_assert(std::is_lvalue_reference_v<T> && !std::is_const_v<std::remove_reference_t<T>>,
                  "a checkpoint loads into the object that it is given: pass a variable");
    if constexpr (HasStateDict<Plain>) {
      return object_entry(object);
    } else if constexpr (std::derived_from<Plain, torch::nn::Module>) {
      return module_entry(nullptr, object);
    } else if constexpr (std::derived_from<Plain, torch::optim::Optimizer>) {
      return optimizer_entry(object);
    } else if constexpr (std::derived_from<Plain, torch::optim::LRScheduler>) {
      return scheduler_entry(object);
    } else {
      static_assert(std::is_arithmetic_v<Plain> || std::is_same_v<Plain, std::string>,
                    "a module, an optimizer, a tensor, a generator, a number, a string, or an object with StateDict "
                    "state_dict() const and void load_state_dict(const StateDict&): see cohort/torch/state_dict.h");
      return value_entry(object);
    }
  }
}

template <class T>
void Checkpoint::add(const std::string& name, T&& object) {
  auto entry = entry_of(std::forward<T>(object));
  entry.name = name;
  entry.per_rank = std::is_same_v<std::remove_cvref_t<T>, at::Generator>;
  add_entry(std::move(entry));
}

template <class T>
void Checkpoint::add_per_rank(const std::string& name, T&& object) {
  auto entry = entry_of(std::forward<T>(object));
  entry.name = name;
  entry.per_rank = true;
  add_entry(std::move(entry));
}

}  // namespace cohort

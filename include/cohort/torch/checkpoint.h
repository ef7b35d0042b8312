// SPDX-License-Identifier: BSD-3-Clause
//
// Checkpoints: one rank writes, all ranks load, and a crash at any moment leaves the last checkpoint intact.
//
//   cohort::Checkpoint checkpoint;
//   checkpoint.add("model", ddp.module());            // a module, its shared_ptr or holder
//   checkpoint.add("optimizer", optimizer);           // with its options, so the learning rate is restored too
//   checkpoint.add("sampler", sampler);               // anything with save and load for libtorch's archives
//   checkpoint.add("epoch", epoch);                   // numbers, strings, tensors
//
//   if (auto last = cohort::Checkpoint::latest("run")) checkpoint.load(*last, pg);
//   ...
//   checkpoint.save("run/step-" + std::to_string(step) + ".ckpt", pg, {.keep = 2});
//
// The checkpoint refers to what was added and does not copy it. Modules, tensors and generators are kept alive; other
// objects must outlive the Checkpoint. save and load are collective: all ranks of the group call them, and they succeed
// on all ranks or throw on all. Rank 0's state is saved; with DistributedDataParallel modules, buffers and optimizers
// are the same on all ranks.
//
// The random state of each rank is part of the checkpoint (the host's default generator, and those of the devices on
// which the modules are), so that a resumed run computes the same bits as an uninterrupted one, dropout included. If a
// run is resumed with another number of ranks, each rank keeps its current random state.
//
// A file is written without a name (or as PATH.partial, if the file system does not support that), synchronised to
// disk, and given its name in one step; then the folder is synchronised. A file that has its name is therefore
// complete, also after a power cut. It has a format version and a checksum: an incomplete, damaged or foreign file is a
// CheckpointError that names it, before anything is loaded.
#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <cohort/error.h>
#include <cohort/export.h>
#include <cohort/process_group.h>
#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>
#include <torch/serialize/archive.h>

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace cohort {

/// The file is not an intact checkpoint, cannot be read or written, or does not match what is to be loaded.
class COHORT_API CheckpointError : public Error {
 public:
  explicit CheckpointError(const std::string& message, ErrorContext context = {})
      : Error(ErrorKind::error, message, std::move(context)) {}
};

struct CheckpointOptions {
  bool random_state = true;
};

struct CheckpointSaveOptions {
  /// The number of older checkpoints to keep beside the new one; nullopt: all. Only files whose names differ in numbers
  /// alone are deleted: saving step-300.ckpt may delete step-100.ckpt, but not best.ckpt.
  std::optional<std::size_t> keep{};
  /// How long the other ranks wait while rank 0 writes to disk; default: the group's timeout.
  Timeout timeout{};
};

struct CheckpointLoadOptions {
  /// The names in a module that is wrapped by DistributedDataParallel start with "module."; they match those of the
  /// bare module, and the other way round.
  bool ignore_module_prefix = true;
  /// Objects that were added but are not in the file are left as they are; otherwise they are a CheckpointError.
  bool allow_missing = false;
  /// Every rank reads the file itself, and it is checked that all read the same one. Otherwise only rank 0 needs the
  /// file and sends it to the others.
  bool all_ranks_read = false;
  Timeout timeout{};
};

class COHORT_API Checkpoint {
 public:
  explicit Checkpoint(CheckpointOptions options = {}) : options_(options) {}

  /// Accepts the objects listed above. A name that is in use is a ValueError.
  template <class T>
  void add(const std::string& name, T&& object);
  /// For state that differs between ranks, such as error feedback or a generator of your own: every rank's state is in
  /// the file and is restored on that rank. With another number of ranks it is left as it is.
  template <class T>
  void add_per_rank(const std::string& name, T& object);

  /// Null: current_process_group(); if there is none, this process saves alone. Folders are created as needed.
  void save(const std::string& path, ProcessGroupPtr process_group = nullptr,
            const CheckpointSaveOptions& options = {});
  /// The file, its names and its shapes are checked on all ranks before anything is changed.
  void load(const std::string& path, ProcessGroupPtr process_group = nullptr,
            const CheckpointLoadOptions& options = {});

  /// The newest intact checkpoint in a folder, in the order in which they were saved; damaged ones are skipped with a
  /// warning. Reads the file once.
  static std::optional<std::string> latest(const std::string& folder);

 private:
  using Out = torch::serialize::OutputArchive;
  using In = torch::serialize::InputArchive;
  struct Entry {
    std::string name{};
    std::function<void(Out&)> save{};
    std::function<void(In&, const CheckpointLoadOptions&)> check{};  ///< throws, changes nothing
    std::function<void(In&, const CheckpointLoadOptions&)> load{};
    std::function<void()> prepare{};  ///< before save, on all ranks
    std::function<std::optional<at::Device>()> device{};
    bool per_rank = false;
  };

  void add_entry(Entry entry);
  void add_module(const std::string& name, std::shared_ptr<torch::nn::Module> owned, torch::nn::Module& module);
  void add_optimizer(const std::string& name, torch::optim::Optimizer& optimizer, std::function<void()> prepare);
  void add_tensor(const std::string& name, at::Tensor tensor);
  void add_generator(const std::string& name, at::Generator generator);
  void add_value(const std::string& name, std::function<c10::IValue()> get,
                 std::function<void(const c10::IValue&)> check, std::function<void(const c10::IValue&)> set);
  template <class T>
  void add_number(const std::string& name, T& number);
  template <class T>
  static Entry object_entry(const std::string& name, T& object);
  Entry random_entry() const;
  std::vector<at::Device> devices() const;

  CheckpointOptions options_;
  std::vector<Entry> entries_;
  std::vector<std::function<std::vector<at::Device>()>> devices_;
};

template <class T>
concept Archivable =
    requires(T& object, const T& constant, torch::serialize::OutputArchive& out, torch::serialize::InputArchive& in) {
      constant.save(out);
      object.load(in);
    };

template <class T>
Checkpoint::Entry Checkpoint::object_entry(const std::string& name, T& object) {
  Entry entry{.name = name};
  entry.save = [&object](Out& archive) { std::as_const(object).save(archive); };
  entry.load = [&object](In& archive, const CheckpointLoadOptions&) { object.load(archive); };
  return entry;
}

template <class T>
void Checkpoint::add_number(const std::string& name, T& number) {
  using Kept = std::conditional_t<std::is_same_v<T, bool>, bool,
                                  std::conditional_t<std::is_integral_v<T>, std::int64_t, double>>;
  const auto fits = [](const c10::IValue& value) {
    return std::is_same_v<Kept, bool> ? value.isBool() : (std::is_integral_v<T> ? value.isInt() : value.isDouble());
  };
  add_value(
      name, [&number] { return c10::IValue(static_cast<Kept>(number)); },
      [fits, name](const c10::IValue& value) {
        if (!fits(value)) throw CheckpointError("'" + name + "' is of another type in the checkpoint");
      },
      [&number](const c10::IValue& value) { number = static_cast<T>(value.to<Kept>()); });
}

template <class T>
void Checkpoint::add(const std::string& name, T&& object) {
  using Plain = std::remove_cvref_t<T>;
  if constexpr (std::is_convertible_v<T, std::shared_ptr<torch::nn::Module>>) {
    std::shared_ptr<torch::nn::Module> module = object;
    if (module == nullptr) throw ValueError("checkpoint: '" + name + "' is a null module");
    auto& reference = *module;
    add_module(name, std::move(module), reference);
  } else if constexpr (requires { std::shared_ptr<torch::nn::Module>(object.ptr()); }) {
    std::shared_ptr<torch::nn::Module> module = object.ptr();
    auto& reference = *module;
    add_module(name, std::move(module), reference);
  } else if constexpr (std::is_same_v<Plain, at::Tensor>) {
    add_tensor(name, object);
  } else if constexpr (std::is_same_v<Plain, at::Generator>) {
    add_generator(name, object);
  } else {
    static_assert(std::is_lvalue_reference_v<T> && !std::is_const_v<std::remove_reference_t<T>>,
                  "a checkpoint loads into the object that it is given: pass a variable");
    if constexpr (std::derived_from<Plain, torch::nn::Module>) {
      add_module(name, nullptr, object);
    } else if constexpr (std::derived_from<Plain, torch::optim::Optimizer>) {
      std::function<void()> prepare;
      if constexpr (requires { object.consolidate_state(0); }) prepare = [&object] { object.consolidate_state(0); };
      add_optimizer(name, object, std::move(prepare));
    } else if constexpr (std::is_arithmetic_v<Plain>) {
      add_number(name, object);
    } else if constexpr (std::is_same_v<Plain, std::string>) {
      add_value(
          name, [&object] { return c10::IValue(object); },
          [name](const c10::IValue& value) {
            if (!value.isString()) throw CheckpointError("'" + name + "' is not a string in the checkpoint");
          },
          [&object](const c10::IValue& value) { object = value.toStringRef(); });
    } else {
      static_assert(Archivable<Plain>, "needs save(torch::serialize::OutputArchive&) const and load(InputArchive&)");
      add_entry(object_entry(name, object));
    }
  }
}

template <class T>
void Checkpoint::add_per_rank(const std::string& name, T& object) {
  static_assert(Archivable<T>, "needs save(torch::serialize::OutputArchive&) const and load(InputArchive&)");
  auto entry = object_entry(name, object);
  entry.per_rank = true;
  add_entry(std::move(entry));
}

}  // namespace cohort

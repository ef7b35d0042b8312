// SPDX-License-Identifier: BSD-3-Clause
#include "torch/state/checkpoint_directory.h"

#include <cohort/log.h>
#include <cohort/torch/checkpoint_error.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <system_error>
#include <utility>

#include "core/file_descriptor.h"
#include "torch/state/checkpoint_file.h"
#include "torch/state/saved_parts.h"
#include "torch/state/value_text.h"

namespace cohort {

namespace {

constexpr std::string_view index_name = "model.safetensors.index.json";
constexpr std::string_view single_name = "model.safetensors";
constexpr std::size_t index_depth = 16;
/// What no run reaches, so that counting on does not wrap.
constexpr std::uint64_t serial_limit = std::uint64_t{1} << 53U;

std::string inside(const std::string& folder, std::string_view name) {
  return (std::filesystem::path(folder) / name).string();
}

[[noreturn]] void fail_with_errno(const std::string& path, std::string_view what) {
  throw CheckpointError(fmt::format("{}: {}: {}", path, what, std::generic_category().message(errno)));
}

/// The files in an index. Other contents are passed over.
class IndexReader final : public nlohmann::json_sax<nlohmann::json> {
 public:
  std::set<std::string> files;

  bool start_object(std::size_t /*elements*/) override { return deeper(); }
  bool end_object() override { return higher(); }
  bool start_array(std::size_t /*elements*/) override { return deeper(); }
  bool end_array() override { return higher(); }
  bool key(string_t& name) override {
    if (depth_ == 1) in_map_ = name == "weight_map";
    return true;
  }
  bool string(string_t& text) override {
    if (in_map_ && depth_ == 2) files.insert(std::move(text));
    return true;
  }
  bool null() override { return true; }
  bool boolean(bool /*value*/) override { return true; }
  bool number_integer(number_integer_t /*value*/) override { return true; }
  bool number_unsigned(number_unsigned_t /*value*/) override { return true; }
  bool number_float(number_float_t /*value*/, const string_t& /*text*/) override { return true; }
  bool binary(binary_t& /*value*/) override { return false; }
  bool parse_error(std::size_t /*position*/, const std::string& /*token*/,
                   const nlohmann::json::exception& /*error*/) override {
    return false;
  }

 private:
  bool deeper() { return ++depth_ <= index_depth; }
  bool higher() {
    --depth_;
    return true;
  }

  std::size_t depth_ = 0;
  bool in_map_ = false;
};

std::set<std::string> parse_index(const std::string& text, const std::string& path) {
  IndexReader reader;
  if (!nlohmann::json::sax_parse(text, &reader) || reader.files.empty()) {
    throw CheckpointError(path + ": is not an index: it has no weight_map of tensors and files");
  }
  for (const auto& name : reader.files) {
    // A name with a path could point anywhere.
    if (name.empty() || name == "." || name == ".." || name.find_first_of(std::string_view("/\0", 2)) != name.npos) {
      throw CheckpointError(fmt::format("{}: {} is not the name of a file in this folder", path, printable(name)));
    }
  }
  return std::move(reader.files);
}

std::optional<std::uint64_t> number_in(const std::map<std::string, std::string>& metadata, std::string_view key) {
  const auto it = metadata.find(std::string(key));
  return it == metadata.end() ? std::nullopt : text_to_unsigned(it->second);
}

/// Nothing if it is not a checkpoint of ours.
std::optional<std::uint64_t> serial_of(const std::string& path) {
  const auto header = read_header(is_folder(path) ? files_of_folder(path).front() : path);
  const auto serial = number_in(header.metadata, serial_key);
  if (!header.metadata.contains(std::string(format_key)) || !serial || *serial >= serial_limit) return std::nullopt;
  return serial;
}

/// Whether somebody may take it for a checkpoint: a folder with an index, the old format, or a file with a header.
bool looks_like_checkpoint(const std::string& path) {
  if (is_folder(path)) return ::access(inside(path, index_name).c_str(), F_OK) == 0;
  const FileDescriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  std::array<char, safetensors_length_bytes + 1> start{};
  if (!file || ::pread(file.get(), start.data(), start.size(), 0) != static_cast<ssize_t>(start.size())) return false;
  return start.back() == '{' || std::string_view(start.data(), start.size()).starts_with("COHORTCK");
}

void write_synced(const std::string& path, const std::string& text) {
  const FileDescriptor file(::open(path.c_str(), O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0666));
  if (!file) fail_with_errno(path, "cannot be made");
  for (std::size_t done = 0; done < text.size();) {
    const auto count = ::write(file.get(), text.data() + done, text.size() - done);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) fail_with_errno(path, "writing failed");
    done += static_cast<std::size_t>(count);
  }
  if (::fsync(file.get()) != 0) fail_with_errno(path, "the data cannot be brought to the disk");
}

/// The index of the files, after checking that each is there and of this save.
std::string make_index(const std::string& folder, int ranks, const std::string& save_id) {
  std::map<std::string, std::string> places;
  std::uint64_t total = 0;
  for (int rank = 0; rank < ranks; ++rank) {
    const auto path = rank_file(folder, rank, ranks);
    const auto name = std::filesystem::path(path).filename().string();
    SafetensorsHeader header;
    try {
      header = read_header(path);
    } catch (const CheckpointError& e) {
      throw CheckpointError(fmt::format(
          "{} (written by rank {}; a checkpoint of one file for each rank needs a folder that all ranks see)",
          e.message(), rank));
    }
    const auto id = header.metadata.find(std::string(save_key));
    if (id == header.metadata.end() || id->second != save_id) {
      throw CheckpointError(path + ": belongs to another save; two jobs write to this folder");
    }
    for (const auto& tensor : header.tensors) {
      places.emplace(tensor.name, name);
      total += tensor.end - tensor.begin;
    }
  }
  return nlohmann::json({{"metadata", {{"total_size", total}}}, {"weight_map", places}}).dump(2) + "\n";
}

bool is_own_folder(const std::string& path) {
  try {
    return is_folder(path) && serial_of(path).has_value();
  } catch (const CheckpointError&) {
    return false;
  }
}

bool exists(const std::string& path) {
  struct stat status {};
  return ::lstat(path.c_str(), &status) == 0;
}

/// Puts the folder's name in front of what `body` reports of its tensors.
template <class F>
void naming_folder(const std::string& path, F&& body) {
  try {
    body();
  } catch (const CheckpointError& e) {
    throw CheckpointError(path + ": " + e.message());
  }
}

/// Renames; if there is a checkpoint of this name already, exchanges both.
void replace_folder(const std::string& from, const std::string& to) {
  if (exists(to)) {
    if (!is_own_folder(to)) throw CheckpointError(to + ": exists and is not a checkpoint; it is not replaced");
    if (::renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), RENAME_EXCHANGE) == 0) {
      remove_checkpoint(from);
      return;
    }
  }
  // Also on a file system that cannot exchange: a crash in between leaves the old one under another name, where
  // latest() sees it.
  const auto old = to + ".old";
  if (is_own_folder(old)) remove_checkpoint(old);
  if (exists(to) && std::rename(to.c_str(), old.c_str()) != 0) fail_with_errno(to, "cannot be replaced");
  if (std::rename(from.c_str(), to.c_str()) != 0) fail_with_errno(to, "the folder cannot be given its name");
  if (is_own_folder(old)) remove_checkpoint(old);
}

}  // namespace

bool is_folder(const std::string& path) {
  struct stat status {};
  return ::lstat(path.c_str(), &status) == 0 && S_ISDIR(status.st_mode);
}

std::vector<std::string> files_of_folder(const std::string& path) {
  const auto index = inside(path, index_name);
  std::vector<std::string> files;
  if (::access(index.c_str(), F_OK) != 0) {
    if (const auto single = inside(path, single_name); ::access(single.c_str(), F_OK) == 0) return {single};
    throw CheckpointError(fmt::format("{}: is a folder without {} and {}; name a file or a folder with one of these",
                                      path, index_name, single_name));
  }
  for (const auto& name : parse_index(read_small_file(index), index)) files.push_back(inside(path, name));
  return files;
}

std::vector<FoundCheckpoint> find_checkpoints(const std::string& folder, bool warns) {
  std::vector<FoundCheckpoint> found;
  std::error_code error;
  for (std::filesystem::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    const auto path = it->path().string();
    if (path.ends_with(partial_suffix) || !looks_like_checkpoint(path)) continue;
    try {
      if (const auto serial = serial_of(path)) found.push_back({.path = path, .serial = *serial});
    } catch (const CheckpointError& e) {
      if (warns) log(LogLevel::warn, fmt::format("checkpoint: passed over: {}", e.message()));
    }
  }
  std::sort(found.begin(), found.end(), [](const auto& a, const auto& b) { return a.serial > b.serial; });
  return found;
}

std::uint64_t next_serial(const std::string& folder) {
  const auto before = find_checkpoints(folder);
  return before.empty() ? 1 : before.front().serial + 1;
}

void verify_checkpoint(const std::string& path, const Secret* secret) {
  if (!is_folder(path)) return verify_file(path, secret);
  SaveCheck check;
  PartCatalog catalog;
  for (const auto& file : files_of_folder(path)) {
    verify_file(file, secret);
    const auto header = read_header(file);
    check.add(header.metadata);
    naming_folder(path, [&] { catalog.take_parts(0, header); });
  }
  check.finish(path);
  naming_folder(path, [&] { catalog.check(); });
}

bool remove_checkpoint(const std::string& path) {
  if (!is_folder(path)) return ::unlink(path.c_str()) == 0;
  // The index goes first: without it the rest is no checkpoint. Files that others have put there stay, with the folder.
  std::vector<std::string> files;
  try {
    files = files_of_folder(path);
  } catch (const CheckpointError&) {
    errno = ENOENT;
    return false;
  }
  ::unlink(inside(path, index_name).c_str());
  for (const auto& file : files) ::unlink(file.c_str());
  return ::rmdir(path.c_str()) == 0;
}

void SaveCheck::add(const std::map<std::string, std::string>& metadata) {
  const auto save = metadata.find(std::string(save_key));
  if (save == metadata.end()) return;
  saves_.insert(save->second);
  ranks_.insert(number_in(metadata, ranks_key).value_or(0));
  shards_.insert(number_in(metadata, shard_key).value_or(0));
}

void SaveCheck::finish(const std::string& path) const {
  if (saves_.empty()) return;
  if (saves_.size() > 1 || ranks_.size() > 1) throw CheckpointError(path + ": its files are of different saves");
  if (shards_.size() != *ranks_.begin()) {
    throw CheckpointError(fmt::format("{}: it has the files of {} of {} ranks", path, shards_.size(), *ranks_.begin()));
  }
}

std::string partial_folder(const std::string& path) {
  return path + std::string(partial_suffix);
}

std::string rank_file(const std::string& folder, int rank, int ranks) {
  return inside(folder, fmt::format("model-{:05}-of-{:05}.safetensors", rank + 1, ranks));
}

void begin_folder(const std::string& path) {
  discard_folder(path);
  make_folder(folder_of(path));
  if (::mkdir(partial_folder(path).c_str(), 0777) != 0) fail_with_errno(path, "no folder can be made");
}

void commit_folder(const std::string& path, int ranks, const std::string& save_id) {
  const auto partial = partial_folder(path);
  write_synced(inside(partial, index_name), make_index(partial, ranks, save_id));
  if (!sync_folder(partial)) fail_with_errno(path, "the folder cannot be brought to the disk");
  replace_folder(partial, path);
  if (!sync_folder(folder_of(path))) fail_with_errno(path, "the folder cannot be brought to the disk");
}

void discard_folder(const std::string& path) {
  // std::filesystem::remove_all is not used, because the one that PyTorch's builds of libtorch export crashes. There
  // are files alone in it; if somebody has put a folder there, making a new one fails and says so.
  const auto partial = partial_folder(path);
  std::error_code error;
  for (std::filesystem::directory_iterator it(partial, error), end; !error && it != end; it.increment(error)) {
    ::unlink(it->path().c_str());
  }
  ::rmdir(partial.c_str());
}

}  // namespace cohort

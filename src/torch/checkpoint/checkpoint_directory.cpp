// SPDX-License-Identifier: BSD-3-Clause
#include "torch/checkpoint/checkpoint_directory.h"

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
#include <random>
#include <set>
#include <system_error>
#include <utility>

#include "core/file_descriptor.h"
#include "torch/checkpoint/checkpoint_file.h"
#include "torch/checkpoint/input_file.h"
#include "torch/checkpoint/saved_parts.h"
#include "torch/checkpoint/seal.h"
#include "torch/state/value_text.h"

namespace cohort {

namespace {

constexpr std::string_view index_name = "model.safetensors.index.json";
constexpr std::string_view single_name = "model.safetensors";
constexpr std::string_view trash_suffix = ".removed";
constexpr std::size_t index_depth = 16;
constexpr std::size_t id_digits = 32;
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
    // A name with a path could point anywhere, and errors will have the name.
    if (name.empty() || name == "." || name == ".." || name.find('/') != name.npos || has_control_characters(name)) {
      throw CheckpointError(fmt::format("{}: {} is not the name of a file in this folder", path, printable(name)));
    }
  }
  return std::move(reader.files);
}

std::optional<std::uint64_t> number_in(const std::map<std::string, std::string>& metadata, std::string_view key) {
  const auto it = metadata.find(std::string(key));
  return it == metadata.end() ? std::nullopt : text_to_unsigned(it->second);
}

/// Nothing if it is not a checkpoint of ours. A CheckpointError if it is none that this secret signed.
std::optional<FoundCheckpoint> judge_header(const std::string& path, const Secret* secret) {
  const auto& metadata = read_header(is_folder(path) ? files_of_folder(path).front() : path).metadata;
  const auto serial = number_in(metadata, serial_key);
  if (!metadata.contains(std::string(format_key)) || !serial || *serial >= serial_limit) return std::nullopt;
  const auto proof = metadata.find(std::string(serial_proof_key));
  const bool is_signed = proof != metadata.end();
  if (secret != nullptr &&
      !(is_signed && is_serial_proof(text_to_string(proof->second).value_or(""), *serial, *secret))) {
    throw CheckpointError(path + ": its serial number is not signed with this secret");
  }
  return FoundCheckpoint{.path = path, .serial = *serial, .is_signed = is_signed};
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
  // The format says whose it is, if the files do not any more.
  const nlohmann::json about{{"total_size", total}, {std::string(format_key), unsigned_text(checkpoint_format)}};
  return nlohmann::json({{"metadata", about}, {"weight_map", places}}).dump(2) + "\n";
}

bool exists(const std::string& path) {
  struct stat status {};
  return ::lstat(path.c_str(), &status) == 0;
}

/// Calls `use` with the names in a folder until it returns false. False if the folder cannot be read.
template <class F>
bool each_name_in(const std::string& folder, F&& use) {
  std::error_code error;
  for (std::filesystem::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    if (!use(it->path().filename().string())) return true;
  }
  return !error;
}

/// Whether save() gives this name to a file of a folder, also while the file is written.
bool is_name_of_save(std::string_view name) {
  constexpr std::string_view start = "model-";
  constexpr std::string_view of = "-of-";
  constexpr std::string_view end = ".safetensors";
  if (name.ends_with(partial_suffix)) name.remove_suffix(partial_suffix.size());
  if (name == index_name) return true;
  if (!name.starts_with(start) || !name.ends_with(end)) return false;
  name = name.substr(start.size(), name.size() - start.size() - end.size());
  const auto middle = name.find(of);
  return middle != name.npos && text_to_unsigned(name.substr(0, middle)).has_value() &&
         text_to_unsigned(name.substr(middle + of.size())).has_value();
}

bool is_regular_file(const std::string& path) {
  struct stat status {};
  return ::lstat(path.c_str(), &status) == 0 && S_ISREG(status.st_mode);
}

/// Whether what is left of an index or of a file with tensors says that Cohort wrote it. It need not be whole.
bool names_format(const std::string& path) {
  try {
    const InputFile file(path);
    std::uint64_t length = 0;
    const auto start = file.read(0, std::min<std::uint64_t>(file.bytes(), safetensors_length_bytes));
    start.copy(reinterpret_cast<char*>(&length), sizeof length);
    length = std::min(length, safetensors_header_limit) + safetensors_length_bytes;
    const auto text = file.read(0, std::min(file.bytes(), length));
    return text.find(fmt::format("\"{}\"", format_key)) != text.npos;
  } catch (const CheckpointError&) {
    return false;
  }
}

bool has_sound_header(const std::string& path) {
  try {
    read_header(path);
    return true;
  } catch (const CheckpointError&) {
    return false;
  }
}

/// Why something of others would be lost with the folder; empty if nothing would. The folder may be torn: what a broken
/// disk or a process that was killed has left of a checkpoint can be replaced.
std::string why_kept(const std::string& path) {
  if (!is_folder(path)) return "it is not a folder";
  std::string why;
  bool is_empty = true;
  bool is_ours = false;
  const bool is_read = each_name_in(path, [&](const std::string& name) {
    is_empty = false;
    const auto file = inside(path, name);
    const bool says_so = is_name_of_save(name) && is_regular_file(file) && names_format(file);
    is_ours = is_ours || says_so;
    if (says_so || (is_name_of_save(name) && is_regular_file(file) && !has_sound_header(file))) return true;
    why = fmt::format("no save wrote {} in it", printable(name));
    return false;
  });
  if (!is_read) why = "it cannot be read";
  if (why.empty() && !is_empty && !is_ours) why = "nothing in it says that a save wrote it";
  return why;
}

void require_replaceable(const std::string& path) {
  if (const auto why = why_kept(path); !why.empty()) {
    throw CheckpointError(
        fmt::format("{}: exists and is not a checkpoint alone ({}), so it is not replaced; move it, or save under "
                    "another name",
                    path, why));
  }
}

/// Deletes files of saves, and the folder if nothing else is in it; false with errno set if it stays.
bool clear_folder(const std::string& path) {
  ::unlink(inside(path, index_name).c_str());  // first: without it the rest is no checkpoint
  each_name_in(path, [&](const std::string& name) {
    if (is_name_of_save(name)) ::unlink(inside(path, name).c_str());
    return true;
  });
  return ::rmdir(path.c_str()) == 0;
}

/// Whether everything in the folder may be of a save, judged by the names.
bool has_names_of_saves_alone(const std::string& path) {
  bool good = true;
  const bool is_read = each_name_in(path, [&](const std::string& name) { return good = is_name_of_save(name); });
  return is_read && good;
}

/// Renamed before, so that neither a crash nor another save sees half of it.
bool remove_folder(const std::string& path) {
  const auto trash = fmt::format("{}.{}{}", path, new_save_id(), trash_suffix);
  return std::rename(path.c_str(), trash.c_str()) == 0 && clear_folder(trash);
}

/// What is in front of a point, what new_save_id() returns, and this end; nothing for other names.
std::optional<std::string_view> name_before_id(std::string_view name, std::string_view end) {
  if (!name.ends_with(end)) return std::nullopt;
  name.remove_suffix(end.size());
  if (name.size() < id_digits + 1) return std::nullopt;
  const auto before = name.substr(0, name.size() - id_digits - 1);
  const auto id = name.substr(before.size() + 1);
  if (name[before.size()] != '.' || id.find_first_not_of("0123456789abcdef") != id.npos) return std::nullopt;
  return before;
}

/// A folder that a killed process was deleting.
bool is_trash(std::string_view name) {
  return name_before_id(name, trash_suffix).has_value();
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

std::vector<FoundCheckpoint> find_checkpoints(const std::string& folder, const Secret* secret, bool warns) {
  std::vector<FoundCheckpoint> found;
  each_name_in(folder, [&](const std::string& name) {
    const auto path = inside(folder, name);
    if (name.ends_with(partial_suffix) || is_trash(name) || !looks_like_checkpoint(path)) return true;
    try {
      if (has_control_characters(name)) throw CheckpointError(printable(name) + ": has control characters in its name");
      if (const auto checkpoint = judge_header(path, secret)) found.push_back(*checkpoint);
    } catch (const CheckpointError& e) {
      if (warns) log(LogLevel::warn, fmt::format("checkpoint: passed over: {}", e.message()));
    }
    return true;
  });
  std::sort(found.begin(), found.end(), [](const auto& a, const auto& b) { return a.serial > b.serial; });
  return found;
}

std::uint64_t next_serial(const std::string& folder, const Secret* secret) {
  const auto before = find_checkpoints(folder, secret);
  if (before.empty()) return 1;
  const auto& newest = before.front();
  if (newest.serial + 1 < serial_limit) return newest.serial + 1;
  throw CheckpointError(fmt::format(
      "{}: has the serial number {}, and no newer checkpoint can have a higher one; move it to another folder",
      newest.path, newest.serial));
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
  // Files that others have put there stay, with the folder.
  return why_kept(path).empty() ? remove_folder(path) : clear_folder(path);
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

std::string new_save_id() {
  std::random_device random;
  return fmt::format("{:08x}{:08x}{:08x}{:08x}", random(), random(), random(), random());
}

void begin_folder(const std::string& path) {
  if (exists(path)) require_replaceable(path);
  make_folder(folder_of(path));
  discard_folder(path);
  const auto partial = partial_folder(path);
  if (::mkdir(partial.c_str(), 0777) != 0) fail_with_errno(partial, "no folder can be made");
}

void commit_folder(const std::string& path, int ranks, const std::string& save_id) {
  // Under a name of its own, so that another job that saves to this path by mistake cannot put its files among those
  // that are checked here.
  const auto complete = fmt::format("{}.{}{}", path, new_save_id(), partial_suffix);
  if (std::rename(partial_folder(path).c_str(), complete.c_str()) != 0) {
    fail_with_errno(partial_folder(path), "cannot be renamed; do two jobs write to this folder?");
  }
  write_synced(inside(complete, index_name), make_index(complete, ranks, save_id));
  if (!sync_folder(complete)) fail_with_errno(path, "the folder cannot be brought to the disk");
  const auto before = replace_folder(complete, path);
  if (!sync_folder(folder_of(path))) fail_with_errno(path, "the folder cannot be brought to the disk");
  if (!before.empty()) remove_checkpoint(before);
}

void discard_folder(const std::string& path) {
  const auto folder = folder_of(path);
  const auto partial = std::filesystem::path(partial_folder(path)).filename().string();
  const auto own = std::filesystem::path(path).filename().string();
  std::vector<std::string> left;
  each_name_in(folder, [&](const std::string& name) {
    if (name == partial || name_before_id(name, partial_suffix) == own || is_trash(name)) left.push_back(name);
    return true;
  });
  for (const auto& name : left) {
    const auto each = inside(folder, name);
    if (!is_folder(each) || !has_names_of_saves_alone(each)) continue;
    if (is_trash(name)) {
      clear_folder(each);
    } else {
      remove_folder(each);
    }
  }
}

std::string replace_folder(const std::string& from, const std::string& to, bool can_exchange) {
  constexpr std::string_view failed = "the folder cannot be given its name";
  if (std::rename(from.c_str(), to.c_str()) == 0) return {};  // also onto an empty folder
  if (errno != EEXIST && errno != ENOTEMPTY && errno != ENOTDIR) fail_with_errno(to, failed);
  require_replaceable(to);
  if (can_exchange && ::renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), RENAME_EXCHANGE) == 0) return from;
  if (can_exchange && errno != EINVAL && errno != ENOSYS && errno != EOPNOTSUPP) fail_with_errno(to, failed);
  // The file system cannot exchange. A crash in between leaves the old one under another name, where latest() sees it.
  auto old = to + ".old";
  if (exists(old)) {
    require_replaceable(old);
    remove_checkpoint(old);
  }
  if (std::rename(to.c_str(), old.c_str()) != 0) fail_with_errno(to, "cannot be replaced");
  if (std::rename(from.c_str(), to.c_str()) != 0) {
    const int why = errno;
    static_cast<void>(std::rename(old.c_str(), to.c_str()));
    errno = why;
    fail_with_errno(to, failed);
  }
  return old;
}

}  // namespace cohort

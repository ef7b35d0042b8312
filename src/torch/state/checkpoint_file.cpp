// SPDX-License-Identifier: BSD-3-Clause
#include "torch/state/checkpoint_file.h"

#include <cohort/torch/checkpoint.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <utility>

namespace cohort {

namespace {

constexpr std::string_view checkpoint_magic = "COHORTCK";
constexpr std::uint32_t checkpoint_version = 1;
constexpr std::string_view partial_suffix = ".partial";
constexpr std::size_t write_buffer_bytes = std::size_t{1} << 20;

std::string why() {
  return std::strerror(errno);  // NOLINT(concurrency-mt-unsafe): glibc's is thread-safe
}

class OpenFile {
 public:
  explicit OpenFile(int fd) : fd_(fd) {}
  ~OpenFile() {
    if (fd_ >= 0) ::close(fd_);
  }
  OpenFile(const OpenFile&) = delete;
  OpenFile& operator=(const OpenFile&) = delete;
  int fd() const { return fd_; }

 private:
  int fd_;
};

/// Returns fewer bytes than requested only at the end of the file; -1 with errno set on an error.
ssize_t read_fully(int fd, char* to, std::size_t bytes) {
  std::size_t done = 0;
  while (done < bytes) {
    const auto got = ::read(fd, to + done, bytes - done);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return -1;
    if (got == 0) break;
    done += static_cast<std::size_t>(got);
  }
  return static_cast<ssize_t>(done);
}

/// Why the file is not a checkpoint; empty if it is one.
std::string header_problem(std::string_view bytes, CheckpointHeader& header) {
  const auto known = std::min(bytes.size(), checkpoint_magic.size());
  if (bytes.empty() || bytes.substr(0, known) != checkpoint_magic.substr(0, known)) {
    return "is not a checkpoint of Cohort";
  }
  if (bytes.size() < sizeof header) return fmt::format("is torn: it ends after {} bytes", bytes.size());
  std::memcpy(&header, bytes.data(), sizeof header);
  if (header.version > checkpoint_version) {
    return fmt::format("is of format version {}; this version of Cohort reads up to {}", header.version,
                       checkpoint_version);
  }
  Crc64 crc;
  crc.add(&header, offsetof(CheckpointHeader, header_crc));
  return crc.value() == header.header_crc ? "" : "is damaged: the checksum of its header differs";
}

bool sync_folder(const std::string& path) {
  const OpenFile folder(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  // Some file systems cannot synchronise a folder (EINVAL); nothing more can be done there.
  return folder.fd() >= 0 && (::fsync(folder.fd()) == 0 || errno == EINVAL);
}

}  // namespace

std::string folder_of(const std::string& path) {
  const auto folder = std::filesystem::path(path).parent_path().string();
  return folder.empty() ? "." : folder;
}

void make_folder(const std::string& folder) {
  if (::access(folder.c_str(), F_OK) == 0) return;
  const auto above = folder_of(folder);
  if (above != folder) make_folder(above);
  if (::mkdir(folder.c_str(), 0777) == 0) sync_folder(above);
}

CheckpointWriter::CheckpointWriter(std::string path, std::uint64_t serial, std::uint64_t ranks, bool with_name)
    : path_(std::move(path)),
      folder_(folder_of(path_)),
      partial_(path_ + std::string(partial_suffix)),
      serial_(serial),
      ranks_(ranks) {
  ::unlink(partial_.c_str());  // left by a save that was killed
  if (!with_name) fd_ = ::open(folder_.c_str(), O_TMPFILE | O_WRONLY | O_CLOEXEC, 0666);
  if (with_name || (fd_ < 0 && (errno == EOPNOTSUPP || errno == EISDIR || errno == EINVAL))) {
    has_name_ = true;
    fd_ = ::open(partial_.c_str(), O_CREAT | O_TRUNC | O_WRONLY | O_CLOEXEC, 0666);
  }
  if (fd_ < 0) fail(fmt::format("no file can be made in {}", folder_));
  buffer_.reserve(write_buffer_bytes);
  buffer_.assign(sizeof(CheckpointHeader), '\0');
}

CheckpointWriter::~CheckpointWriter() {
  if (fd_ >= 0) ::close(fd_);
  if (has_name_) ::unlink(partial_.c_str());
}

void CheckpointWriter::fail(std::string_view what) const {
  throw CheckpointError(fmt::format("{}: {}: {}", path_, what, why()));
}

void CheckpointWriter::begin_section(std::string name) {
  sections_.emplace_back(std::move(name), 0);
}

void CheckpointWriter::write(const void* data, std::size_t bytes) {
  sections_.back().second += bytes;
  crc_.add(data, bytes);
  if (buffer_.size() + bytes > write_buffer_bytes) flush();
  if (bytes > write_buffer_bytes) return write_through(data, bytes);
  buffer_.append(static_cast<const char*>(data), bytes);
}

void CheckpointWriter::write_through(const void* data, std::size_t bytes) {
  const auto* next = static_cast<const char*>(data);
  while (bytes > 0) {
    const auto count = ::write(fd_, next, bytes);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) fail("writing failed");
    next += count;
    bytes -= static_cast<std::size_t>(count);
  }
}

void CheckpointWriter::flush() {
  write_through(buffer_.data(), buffer_.size());
  buffer_.clear();
}

void CheckpointWriter::commit() {
  std::string index;
  CheckpointHeader header{};
  for (const auto& [name, bytes] : sections_) {
    const auto length = static_cast<std::uint32_t>(name.size());
    index.append(reinterpret_cast<const char*>(&length), sizeof length);
    index.append(name);
    index.append(reinterpret_cast<const char*>(&bytes), sizeof bytes);
    header.data_bytes += bytes;
  }
  crc_.add(index.data(), index.size());
  flush();
  write_through(index.data(), index.size());

  checkpoint_magic.copy(header.magic, sizeof header.magic);
  header.version = checkpoint_version;
  header.sections = static_cast<std::uint32_t>(sections_.size());
  header.serial = serial_;
  header.ranks = ranks_;
  header.index_bytes = index.size();
  header.body_crc = crc_.value();
  Crc64 crc;
  crc.add(&header, offsetof(CheckpointHeader, header_crc));
  header.header_crc = crc.value();
  if (::pwrite(fd_, &header, sizeof header, 0) != static_cast<ssize_t>(sizeof header)) fail("writing failed");
  if (::fsync(fd_) != 0) fail("the data cannot be brought to the disk");
  give_name();
  if (!sync_folder(folder_)) fail("the folder cannot be brought to the disk");
}

void CheckpointWriter::give_name() {
  if (!has_name_) {
    const auto self = fmt::format("/proc/self/fd/{}", fd_);
    if (::linkat(AT_FDCWD, self.c_str(), AT_FDCWD, path_.c_str(), AT_SYMLINK_FOLLOW) == 0) return;
    // link() cannot replace a file, so the new one gets another name first.
    if (errno != EEXIST) fail("the file cannot be given its name");
    if (::linkat(AT_FDCWD, self.c_str(), AT_FDCWD, partial_.c_str(), AT_SYMLINK_FOLLOW) != 0) {
      fail("the file cannot be given its name");
    }
    has_name_ = true;
  }
  if (std::rename(partial_.c_str(), path_.c_str()) != 0) fail("the file cannot be given its name");
  has_name_ = false;
}

std::string CheckpointContent::read_file(const std::string& path) {
  const OpenFile file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  struct stat status {};
  if (file.fd() < 0 || ::fstat(file.fd(), &status) != 0) {
    throw CheckpointError(fmt::format("{}: cannot be opened: {}", path, why()));
  }
  if (!S_ISREG(status.st_mode)) throw CheckpointError(fmt::format("{}: is not a file", path));
  std::string bytes(static_cast<std::size_t>(status.st_size), '\0');
  const auto got = read_fully(file.fd(), bytes.data(), bytes.size());
  if (got < 0) throw CheckpointError(fmt::format("{}: cannot be read: {}", path, why()));
  bytes.resize(static_cast<std::size_t>(got));
  return bytes;
}

CheckpointContent::CheckpointContent(std::string bytes, const std::string& path) : bytes_(std::move(bytes)) {
  const auto refuse = [&](std::string_view why_not) { throw CheckpointError(fmt::format("{}: {}", path, why_not)); };
  const std::string_view all = bytes_;
  if (const auto problem = header_problem(all, header_); !problem.empty()) refuse(problem);
  const auto body = all.substr(sizeof header_);
  if (header_.data_bytes > body.size() || header_.index_bytes != body.size() - header_.data_bytes) {
    refuse(fmt::format("is torn: it has {} bytes and should have {}", all.size(),
                       sizeof header_ + header_.data_bytes + header_.index_bytes));
  }
  Crc64 crc;
  crc.add(body.data(), body.size());
  if (crc.value() != header_.body_crc) refuse("is damaged: its checksum differs");

  auto data = body.substr(0, header_.data_bytes);
  auto index = body.substr(header_.data_bytes);
  const auto take = [&](std::string_view& from, std::uint64_t count) {
    if (count > from.size()) refuse("is damaged: its index points outside");
    const auto taken = from.substr(0, count);
    from.remove_prefix(count);
    return taken;
  };
  for (std::uint32_t i = 0; i < header_.sections; ++i) {
    std::uint32_t name_bytes = 0;
    std::uint64_t section_bytes = 0;
    std::memcpy(&name_bytes, take(index, sizeof name_bytes).data(), sizeof name_bytes);
    std::string name(take(index, name_bytes));
    std::memcpy(&section_bytes, take(index, sizeof section_bytes).data(), sizeof section_bytes);
    sections_.emplace_back(std::move(name), take(data, section_bytes));
  }
}

bool CheckpointContent::has(std::string_view name) const {
  return std::any_of(sections_.begin(), sections_.end(), [&](const auto& each) { return each.first == name; });
}

std::string_view CheckpointContent::section(std::string_view name) const {
  const auto it =
      std::find_if(sections_.begin(), sections_.end(), [&](const auto& each) { return each.first == name; });
  return it == sections_.end() ? std::string_view() : it->second;
}

std::vector<FoundCheckpoint> find_checkpoints(const std::string& folder) {
  std::vector<FoundCheckpoint> found;
  std::error_code error;
  for (std::filesystem::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    const auto path = it->path().string();
    if (path.ends_with(partial_suffix)) continue;
    const OpenFile file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
    std::array<char, sizeof(CheckpointHeader)> bytes{};
    if (file.fd() < 0 || read_fully(file.fd(), bytes.data(), bytes.size()) != static_cast<ssize_t>(bytes.size())) {
      continue;
    }
    CheckpointHeader header{};
    if (!header_problem({bytes.data(), bytes.size()}, header).empty()) continue;
    found.push_back({.path = path, .serial = header.serial});
  }
  std::sort(found.begin(), found.end(), [](const auto& a, const auto& b) { return a.serial > b.serial; });
  return found;
}

}  // namespace cohort

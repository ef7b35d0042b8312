// SPDX-License-Identifier: BSD-3-Clause
#include "core/whole_file.h"

#include <cohort/error.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <system_error>

#include "core/file_descriptor.h"

namespace cohort {

namespace {

constexpr mode_t readable_by_all = 0644;

[[noreturn]] void fail_at_file(const std::string& path, std::string_view what) {
  throw Error(fmt::format("{}: {}: {}", path, what, std::generic_category().message(errno)));
}

void write_all_to(const std::string& path, int fd, std::string_view content) {
  while (!content.empty()) {
    const auto written = ::write(fd, content.data(), content.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) fail_at_file(path, "write");
    content.remove_prefix(static_cast<std::size_t>(written));
  }
}

std::string folder_of(const std::string& path) {
  const auto slash = path.rfind('/');
  return slash == std::string::npos ? "." : path.substr(0, slash + 1);
}

/// A temporary name in the target's folder, until the file is renamed to the target. Removed if that does not happen.
class StepName {
 public:
  explicit StepName(std::string name) : name_(std::move(name)) { ::unlink(name_.c_str()); }
  ~StepName() {
    if (!is_renamed_) ::unlink(name_.c_str());
  }
  StepName(const StepName&) = delete;
  StepName& operator=(const StepName&) = delete;

  const char* c_str() const { return name_.c_str(); }
  void rename_to(const std::string& target) {
    if (::rename(name_.c_str(), target.c_str()) != 0) fail_at_file(target, "rename");
    is_renamed_ = true;
  }

 private:
  std::string name_;
  bool is_renamed_ = false;
};

}  // namespace

void write_whole_file(const std::string& path, std::string_view content) {
  const FileDescriptor nameless(::open(folder_of(path).c_str(), O_TMPFILE | O_WRONLY | O_CLOEXEC, readable_by_all));
  if (nameless) {
    write_all_to(path, nameless.get(), content);
    const auto link = fmt::format("/proc/self/fd/{}", nameless.get());
    const auto give_name = [&link](const char* name) {
      return ::linkat(AT_FDCWD, link.c_str(), AT_FDCWD, name, AT_SYMLINK_FOLLOW) == 0;
    };
    if (give_name(path.c_str())) return;
    if (errno != EEXIST) fail_at_file(path, "create");
    // Only rename() can replace an existing file, and it needs a second name. Both names exist only for an instant.
    StepName step(path + ".new");
    if (!give_name(step.c_str())) fail_at_file(path, "create");
    step.rename_to(path);
    return;
  }
  if (errno != EOPNOTSUPP && errno != EISDIR && errno != EINVAL) fail_at_file(path, "create");

  StepName step(path + ".new");
  const FileDescriptor file(::open(step.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, readable_by_all));
  if (!file) fail_at_file(path, "create");
  write_all_to(path, file.get(), content);
  step.rename_to(path);
}

std::string read_whole_file(const std::string& path, std::size_t limit) {
  const FileDescriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY));
  if (!file && errno == ELOOP) throw Error(fmt::format("{}: is a symbolic link; name the file itself", path));
  struct stat status {};
  if (!file || ::fstat(file.get(), &status) != 0) fail_at_file(path, "open");
  if (!S_ISREG(status.st_mode)) throw Error(fmt::format("{}: is not a regular file", path));
  if (static_cast<std::uint64_t>(status.st_size) > limit) {
    throw Error(fmt::format("{}: has {} bytes, and at most {} are read", path, status.st_size, limit));
  }
  std::string content(static_cast<std::size_t>(status.st_size), '\0');
  std::size_t filled = 0;
  while (filled < content.size()) {
    const auto got = ::read(file.get(), content.data() + filled, content.size() - filled);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) fail_at_file(path, "read");
    if (got == 0) break;
    filled += static_cast<std::size_t>(got);
  }
  content.resize(filled);
  return content;
}

}  // namespace cohort

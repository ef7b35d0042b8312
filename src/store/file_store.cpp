// SPDX-License-Identifier: BSD-3-Clause
//
// File layout, little-endian: a 64-byte header {magic[8], committed end u64, users that joined u64}, then records
// {kind u8, key length u32, value length u32, key, value}. A writer holds the lock, writes its record past the
// committed end and only then moves the end, so a writer that is killed half-way leaves bytes that nobody reads and the
// next writer overwrites.
//
// Two kinds of locks, both of the open file description (F_OFD_*), so that they belong to one FileStore and vanish with
// its process, however that ends:
//   byte 0                     held while the log is read or written
//   byte 2^40 + n              held by the n-th user for as long as it lives, so that the kernel knows who is alive
#include <cohort/error.h>
#include <cohort/file_store.h>

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <mutex>
#include <system_error>
#include <thread>
#include <unordered_map>

#include "core/bytes.h"
#include "core/file_descriptor.h"
#include "store/reply.h"
#include "store/table.h"

namespace cohort {

namespace {

constexpr std::string_view magic = "COHORTF1";
constexpr off_t header_size = 64;
constexpr off_t end_at = 8;
constexpr off_t joined_at = 16;
constexpr off_t first_user_lock = off_t{1} << 40;
constexpr std::size_t record_head = 9;
enum class Record : std::uint8_t { set = 1, erase = 2 };

constexpr std::chrono::milliseconds longest_pause{10};

/// The pause between looks at the file: short at first, so that a quick answer is seen quickly.
class Pause {
 public:
  void rest(Deadline deadline) {
    std::this_thread::sleep_for(std::min<Deadline::Clock::duration>(next_, deadline.remaining()));
    next_ = std::min<std::chrono::microseconds>(next_ * 2, longest_pause);
  }

 private:
  std::chrono::microseconds next_{250};
};

[[noreturn]] void fail(const std::string& path, std::string_view what) {
  throw StoreError(fmt::format("file store {}: {}: {}", path, what, std::generic_category().message(errno)));
}

bool try_lock(int fd, short type, off_t start) {
  struct flock lock {};
  lock.l_type = type;
  lock.l_whence = SEEK_SET;
  lock.l_start = start;
  lock.l_len = 1;
  return ::fcntl(fd, F_OFD_SETLK, &lock) == 0;
}

/// Whether another open file holds a user's lock.
bool others_alive(int fd) {
  struct flock lock {};
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;
  lock.l_start = first_user_lock;
  lock.l_len = first_user_lock;
  return ::fcntl(fd, F_OFD_GETLK, &lock) == 0 && lock.l_type != F_UNLCK;
}

void read_exactly(const std::string& path, int fd, char* into, std::size_t size, off_t at) {
  while (size > 0) {
    const auto n = ::pread(fd, into, size, at);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) fail(path, "read");
    if (n == 0) throw StoreError(fmt::format("file store {}: the file ends before its records do", path));
    into += n;
    at += n;
    size -= static_cast<std::size_t>(n);
  }
}

void write_exactly(const std::string& path, int fd, std::string_view data, off_t at) {
  while (!data.empty()) {
    const auto n = ::pwrite(fd, data.data(), data.size(), at);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) fail(path, "write");
    at += n;
    data.remove_prefix(static_cast<std::size_t>(n));
  }
}

std::uint64_t read_u64(const std::string& path, int fd, off_t at) {
  std::array<char, 8> bytes{};
  read_exactly(path, fd, bytes.data(), bytes.size(), at);
  return load_le<std::uint64_t>(bytes.data());
}

void write_u64(const std::string& path, int fd, std::uint64_t value, off_t at) {
  std::string bytes;
  append_le(bytes, value);
  write_exactly(path, fd, bytes, at);
}

/// Locks byte 0 for a scope.
class ScopedLock {
 public:
  ScopedLock(const std::string& path, int fd, short type, Deadline deadline) : fd_(fd) {
    Pause pause;
    while (!try_lock(fd, type, 0)) {
      if (errno != EAGAIN && errno != EACCES && errno != EINTR) fail(path, "lock");
      if (deadline.expired()) {
        throw StoreTimeoutError(
            fmt::format("file store {}: another process has kept it locked until the deadline", path));
      }
      pause.rest(deadline);
    }
  }
  ~ScopedLock() { try_lock(fd_, F_UNLCK, 0); }
  ScopedLock(const ScopedLock&) = delete;
  ScopedLock& operator=(const ScopedLock&) = delete;

 private:
  int fd_;
};

[[noreturn]] void refuse(const std::string& path, const std::string& why) {
  throw StoreError(fmt::format("file store {}: {}; it was left as it is, choose another path", path, why));
}

/// Whoever owns the file can change what the ranks tell each other, so it has to be this user's or root's. What is not
/// a regular file could block, or be something else than it was a moment ago.
void check_owner_and_type(const std::string& path, const struct stat& status) {
  if (S_ISLNK(status.st_mode)) refuse(path, "it is a symbolic link, which is not followed");
  if (!S_ISREG(status.st_mode)) refuse(path, "it is not a regular file");
  if (status.st_uid != ::geteuid() && status.st_uid != 0) {
    refuse(path, fmt::format("it belongs to user {}, not to you (user {})", status.st_uid, ::geteuid()));
  }
}

struct stat status_of(const std::string& path, int fd) {
  struct stat status {};
  if (::fstat(fd, &status) != 0) fail(path, "stat");
  return status;
}

/// A descriptor of the file that is there, which is this user's regular file; invalid if there is none (see errno).
FileDescriptor open_existing(const std::string& path) {
  // O_NONBLOCK, since opening a device may block; for a regular file it means nothing.
  FileDescriptor fd(::open(path.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY));
  if (fd) {
    check_owner_and_type(path, status_of(path, fd.get()));
  } else if (errno != ENOENT && errno != EINTR) {
    const int reason = errno;
    struct stat status {};
    if (::lstat(path.c_str(), &status) == 0) check_owner_and_type(path, status);
    errno = reason;
    fail(path, "open");
  }
  return fd;
}

FileDescriptor open_or_create(const std::string& path, Deadline deadline) {
  Pause pause;
  for (;;) {
    if (auto fd = open_existing(path)) return fd;
    FileDescriptor fd(::open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
    if (fd) return fd;
    if (errno == EEXIST) continue;  // another rank was faster
    if (errno != ENOENT && errno != EINTR) fail(path, "open");
    if (deadline.expired()) fail(path, "its folder did not appear in time");
    pause.rest(deadline);
  }
}

bool same_file(int fd, const std::string& path) {
  struct stat mine {
  }, there{};
  return ::fstat(fd, &mine) == 0 && ::lstat(path.c_str(), &there) == 0 && mine.st_ino == there.st_ino &&
         mine.st_dev == there.st_dev;
}

}  // namespace

/// One user of the file. It joins on construction, lives as long as the store and its clones, and removes the file if
/// it was the last user.
class FileStore::Membership {
 public:
  Membership(std::string path, int world_size, Deadline deadline) : path_(std::move(path)), world_size_(world_size) {
    for (;;) {
      fd_ = open_or_create(path_, deadline);
      const ScopedLock lock(path_, fd_.get(), F_WRLCK, deadline);
      // Between open and lock the last user of an earlier job may have removed the file. Then open the new one.
      if (!same_file(fd_.get(), path_)) continue;
      join();
      return;
    }
  }

  ~Membership() {
    if (world_size_ <= 0) return;
    try {
      const ScopedLock lock(path_, fd_.get(), F_WRLCK, Deadline::after(std::chrono::seconds(1)));
      const auto joined = read_u64(path_, fd_.get(), joined_at);
      if (joined >= static_cast<std::uint64_t>(world_size_) && !others_alive(fd_.get()) &&
          same_file(fd_.get(), path_)) {
        ::unlink(path_.c_str());
      }
    } catch (const Error&) {  // NOLINT(bugprone-empty-catch): if the file cannot be locked, it is left to the others
    }
  }

  Membership(const Membership&) = delete;
  Membership& operator=(const Membership&) = delete;

  const std::string& path() const { return path_; }
  int descriptor() const { return fd_.get(); }

 private:
  void join() {
    const auto status = status_of(path_, fd_.get());
    if (status.st_size != 0) {
      std::array<char, 8> seen{};
      if (status.st_size >= header_size) read_exactly(path_, fd_.get(), seen.data(), seen.size(), 0);
      if (std::string_view(seen.data(), seen.size()) != magic) {
        refuse(path_, "the file is there and is not a Cohort store");
      }
    }
    if ((status.st_mode & (S_IRWXG | S_IRWXO)) != 0) {
      refuse(path_, fmt::format("others may open it (mode {:o}, where 600 is expected)", status.st_mode & 07777U));
    }
    if (status.st_size == 0) initialise();
    auto joined = read_u64(path_, fd_.get(), joined_at);
    if (joined >= static_cast<std::uint64_t>(first_user_lock)) {
      throw StoreError(fmt::format("file store {}: the file is damaged", path_));
    }
    const bool all_were_here = world_size_ > 0 && joined >= static_cast<std::uint64_t>(world_size_);
    if (all_were_here && !others_alive(fd_.get())) {
      initialise();  // left by a job whose ranks were all killed
      joined = 0;
    }
    if (!try_lock(fd_.get(), F_WRLCK, first_user_lock + static_cast<off_t>(joined))) fail(path_, "lock as user");
    write_u64(path_, fd_.get(), joined + 1, joined_at);
  }

  void initialise() {
    if (::ftruncate(fd_.get(), 0) != 0) fail(path_, "truncate");
    std::string header(magic);
    append_le(header, static_cast<std::uint64_t>(header_size));
    header.resize(header_size, '\0');
    write_exactly(path_, fd_.get(), header, 0);
  }

  std::string path_;
  int world_size_;
  FileDescriptor fd_;
};

/// The log and the map it describes, as far as it has been read.
class FileStore::Log {
 public:
  /// Opens the file that the membership is of a second time, because locks belong to an opening.
  explicit Log(const Membership& membership) : path_(membership.path()), fd_(open_existing(path_)) {
    if (!fd_) fail(path_, "open");
    if (!same_file(membership.descriptor(), path_) || !same_file(fd_.get(), path_)) {
      throw StoreError(fmt::format("file store {}: the file was replaced while in use", path_));
    }
  }

  StoreReply execute(const StoreRequest& request, Deadline deadline) {
    switch (request.op) {
      case StoreOp::get:
      case StoreOp::wait:
        return wait_for(request, deadline);
      case StoreOp::check:
      case StoreOp::num_keys: {
        const std::lock_guard guard(mutex_);
        follow(deadline);
        if (request.op == StoreOp::check) return {.number = missing(request.keys).empty() ? 1 : 0};
        return {.number = static_cast<std::int64_t>(map_.size())};
      }
      default: {
        const std::lock_guard guard(mutex_);
        const ScopedLock lock(path_, fd_.get(), F_WRLCK, deadline);
        catch_up();
        return change(request);
      }
    }
  }

 private:
  StoreReply wait_for(const StoreRequest& request, Deadline deadline) {
    for (Pause pause;; pause.rest(deadline)) {
      const std::lock_guard guard(mutex_);
      follow(deadline);
      const auto absent = missing(request.keys);
      if (absent.empty()) {
        StoreReply reply;
        if (request.op == StoreOp::wait) return reply;
        for (const auto key : request.keys) reply.values.push_back(*find(key));
        return reply;
      }
      if (deadline.expired()) throw_store_error(request, wire::Status::cancelled, absent);
    }
  }

  /// Executes a request that changes the map, with the log read to its end and locked.
  StoreReply change(const StoreRequest& request) {
    const auto key = request.keys.front();
    const auto* const value = find(key);
    switch (request.op) {
      case StoreOp::set:
        for (std::size_t i = 0; i < request.keys.size(); ++i) write(Record::set, request.keys[i], request.values[i]);
        return {};
      case StoreOp::add: {
        const auto sum = sum_with(value, request.number);
        if (!sum) throw_store_error(request, wire::Status::not_a_number, {});
        write(Record::set, key, std::to_string(*sum));
        return {.number = *sum};
      }
      case StoreOp::compare_set: {
        const auto expected = request.values[0];
        if (!matches(value, expected)) return {.values = {value == nullptr ? std::string(expected) : *value}};
        write(Record::set, key, request.values[1]);
        return {.values = {std::string(request.values[1])}};
      }
      case StoreOp::append:
        write(Record::set, key, std::string(value == nullptr ? std::string_view() : *value).append(request.values[0]));
        return {};
      case StoreOp::delete_key:
        write(Record::erase, key, {});
        return {.number = 1};
      default:
        throw NotSupportedError("a FileStore does not have this operation");
    }
  }

  const std::string* find(std::string_view key) const {
    const auto it = map_.find(key);
    return it == map_.end() ? nullptr : &it->second;
  }
  std::vector<std::string_view> missing(const std::vector<std::string_view>& keys) const {
    std::vector<std::string_view> absent;
    for (const auto key : keys) {
      if (!map_.contains(key)) absent.push_back(key);
    }
    return absent;
  }

  /// Brings the map up to date with what is committed now.
  void follow(Deadline deadline) {
    // This look needs no lock: if the end has not moved, nothing was written. A torn read only takes the lock in vain.
    if (read_u64(path_, fd_.get(), end_at) == static_cast<std::uint64_t>(end_)) return;
    const ScopedLock lock(path_, fd_.get(), F_RDLCK, deadline);
    catch_up();
  }

  /// Requires that the log is locked for writing and read to its end.
  void write(Record kind, std::string_view key, std::string_view value) {
    constexpr std::size_t most = std::numeric_limits<std::uint32_t>::max();
    if (key.size() > most || value.size() > most) throw StoreError("file store: keys and values are under 4 GiB");
    std::string record(1, static_cast<char>(kind));
    append_le(record, static_cast<std::uint32_t>(key.size()));
    append_le(record, static_cast<std::uint32_t>(value.size()));
    record.append(key).append(value);
    write_exactly(path_, fd_.get(), record, end_);
    const auto end = end_ + static_cast<off_t>(record.size());
    write_u64(path_, fd_.get(), static_cast<std::uint64_t>(end), end_at);
    end_ = end;
    apply(kind, std::string(key), std::string(value));
  }

  void catch_up() {
    const auto committed = read_u64(path_, fd_.get(), end_at);
    const auto status = status_of(path_, fd_.get());
    if (committed < static_cast<std::uint64_t>(end_) || committed > static_cast<std::uint64_t>(status.st_size)) {
      throw StoreError(fmt::format("file store {}: the file was damaged or replaced while in use", path_));
    }
    std::string news(committed - static_cast<std::uint64_t>(end_), '\0');
    read_exactly(path_, fd_.get(), news.data(), news.size(), end_);
    std::string_view rest = news;
    while (!rest.empty()) {
      if (rest.size() < record_head) throw StoreError(fmt::format("file store {}: a record is cut off", path_));
      const auto kind = static_cast<Record>(rest[0]);
      const std::size_t key_size = load_le<std::uint32_t>(rest.data() + 1);
      const std::size_t value_size = load_le<std::uint32_t>(rest.data() + 5);
      rest.remove_prefix(record_head);
      if (rest.size() < key_size + value_size) {
        throw StoreError(fmt::format("file store {}: a record is cut off", path_));
      }
      apply(kind, std::string(rest.substr(0, key_size)), std::string(rest.substr(key_size, value_size)));
      rest.remove_prefix(key_size + value_size);
    }
    end_ = static_cast<off_t>(committed);
  }

  void apply(Record kind, std::string key, std::string value) {
    if (kind == Record::erase) {
      map_.erase(key);
    } else {
      map_.insert_or_assign(std::move(key), std::move(value));
    }
  }

  std::string path_;
  FileDescriptor fd_;
  std::mutex mutex_;
  std::unordered_map<std::string, std::string, TextHash, std::equal_to<>> map_;
  off_t end_ = header_size;
};

FileStore::FileStore(std::string path, int world_size, std::chrono::milliseconds timeout) {
  if (world_size == 0) throw ValueError("FileStore: a world size of 0; use -1 when it is not known");
  set_timeout(timeout);
  membership_ = std::make_shared<Membership>(std::move(path), world_size, Deadline::after(timeout));
  log_ = std::make_unique<Log>(*membership_);
}

FileStore::FileStore(std::shared_ptr<Membership> membership, std::chrono::milliseconds timeout)
    : membership_(std::move(membership)), log_(std::make_unique<Log>(*membership_)) {
  set_timeout(timeout);
}

FileStore::~FileStore() = default;

const std::string& FileStore::path() const {
  return membership_->path();
}

StorePtr FileStore::clone() {
  return StorePtr(new FileStore(membership_, timeout()));  // NOLINT: the constructor is private
}

StoreReply FileStore::execute(const StoreRequest& request, Deadline deadline) {
  return log_->execute(request, deadline);
}

}  // namespace cohort

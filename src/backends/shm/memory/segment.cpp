// SPDX-License-Identifier: BSD-3-Clause
#include "backends/shm/memory/segment.h"

#include <cohort/error.h>

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <system_error>

namespace cohort::shm {

namespace {

constexpr int fixed_size = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

[[noreturn]] void fail(const char* what, std::size_t bytes) {
  throw BackendError(
      fmt::format("shm: {} of {} bytes failed: {}", what, bytes, std::generic_category().message(errno)));
}

class MappedSegment final : public Segment {
 public:
  MappedSegment(FileDescriptor fd, std::size_t size) : fd_(std::move(fd)) {
    void* const at = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd_.get(), 0);
    if (at == MAP_FAILED) fail("mapping", size);
    base_ = static_cast<std::byte*>(at);
    size_ = size;
    // A core file that contains the staging memory of every rank is of no use.
    ::madvise(base_, size_, MADV_DONTDUMP);
  }
  ~MappedSegment() override { ::munmap(base_, size_); }

  void reserve(std::size_t offset, std::size_t bytes) override {
    while (::fallocate(fd_.get(), 0, static_cast<off_t>(offset), static_cast<off_t>(bytes)) != 0) {
      if (errno != EINTR) fail("reserving shared memory", bytes);
    }
  }

 private:
  FileDescriptor fd_;
};

class HeapSegment final : public Segment {
 public:
  explicit HeapSegment(std::size_t size) {
    // Anonymous memory, so that pages that no rank touches cost nothing.
    void* const at = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at == MAP_FAILED) fail("mapping", size);
    base_ = static_cast<std::byte*>(at);
    size_ = size;
  }
  ~HeapSegment() override { ::munmap(base_, size_); }
  void reserve(std::size_t /*offset*/, std::size_t /*bytes*/) override {}
};

}  // namespace

void Segment::prefault(std::size_t offset, std::size_t bytes) const noexcept {
#if defined(MADV_POPULATE_WRITE)
  constexpr std::size_t page = 4096;
  const auto begin = offset / page * page;
  const auto end = std::min((offset + bytes + page - 1) / page * page, size_);
  ::madvise(base_ + begin, end - begin, MADV_POPULATE_WRITE);
#endif
}

FileDescriptor make_memfd(const std::string& name, std::size_t size) {
  FileDescriptor fd(::memfd_create(name.c_str(), MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd) fail("memfd_create", size);
  // Growing past RLIMIT_FSIZE would raise SIGXFSZ, which ends the process.
  rlimit limit{};
  if (::getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY && limit.rlim_cur < size) {
    errno = EFBIG;
    fail("memfd (see ulimit -f)", size);
  }
  if (::ftruncate(fd.get(), static_cast<off_t>(size)) != 0) fail("ftruncate", size);
  if (::fcntl(fd.get(), F_ADD_SEALS, fixed_size) != 0) fail("sealing", size);
  return fd;
}

FileDescriptor duplicate(const FileDescriptor& fd) {
  FileDescriptor copy(::fcntl(fd.get(), F_DUPFD_CLOEXEC, 0));
  if (!copy) fail("a second descriptor for memory", 0);
  return copy;
}

std::shared_ptr<Segment> map_memfd(FileDescriptor fd) {
  struct stat status {};
  if (::fstat(fd.get(), &status) != 0) fail("fstat", 0);
  const int seals = ::fcntl(fd.get(), F_GET_SEALS);
  if (seals < 0 || (seals & fixed_size) != fixed_size)
    throw BackendError("shm: a peer's memory is not sealed, so its size could change while it is mapped");
  return std::make_shared<MappedSegment>(std::move(fd), static_cast<std::size_t>(status.st_size));
}

std::shared_ptr<Segment> heap_segment(std::size_t size) {
  return std::make_shared<HeapSegment>(size);
}

}  // namespace cohort::shm

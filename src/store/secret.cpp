// SPDX-License-Identifier: BSD-3-Clause
#include <cohort/error.h>
#include <cohort/secret.h>

#include <fcntl.h>
#include <fmt/format.h>
#include <openssl/crypto.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <memory>
#include <optional>
#include <system_error>

#include "core/file_descriptor.h"
#include "core/random.h"

namespace cohort {

namespace {

std::string reason() {
  return std::generic_category().message(errno);
}

std::optional<std::uint8_t> hex_digit(char c) {
  if (c >= '0' && c <= '9') return static_cast<std::uint8_t>(c - '0');
  if (c >= 'a' && c <= 'f') return static_cast<std::uint8_t>(c - 'a' + 10);
  if (c >= 'A' && c <= 'F') return static_cast<std::uint8_t>(c - 'A' + 10);
  return std::nullopt;
}

using Bytes = std::array<std::uint8_t, Secret::size>;

/// Bytes on a page of their own, which is not written to core dumps.
std::shared_ptr<Bytes> hidden_bytes() {
  const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  void* const memory = ::mmap(nullptr, page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) throw Error(fmt::format("memory for a secret: {}", reason()));
  std::shared_ptr<Bytes> bytes(std::construct_at(static_cast<Bytes*>(memory)), [page](Bytes* gone) {
    OPENSSL_cleanse(gone->data(), gone->size());
    ::munmap(gone, page);
  });
  if (::madvise(memory, page, MADV_DONTDUMP) != 0) throw Error(fmt::format("memory for a secret: {}", reason()));
  return bytes;
}

}  // namespace

Secret::Secret() : bytes_(hidden_bytes()) {}

Secret Secret::generate() {
  Secret secret;
  fill_random(std::as_writable_bytes(std::span(*secret.bytes_)));
  return secret;
}

Secret Secret::from_bytes(std::span<const std::uint8_t, size> bytes) {
  Secret secret;
  std::copy(bytes.begin(), bytes.end(), secret.bytes_->begin());
  return secret;
}

Secret Secret::load(const std::string& path) {
  // O_NONBLOCK: opening a FIFO would wait for its writer.
  const FileDescriptor fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
  if (!fd) {
    throw ValueError(fmt::format("secret file {}: {}; make one with: cohort secret {}", path, reason(), path));
  }
  struct stat status {};
  if (::fstat(fd.get(), &status) != 0) throw ValueError(fmt::format("secret file {}: {}", path, reason()));
  if (!S_ISREG(status.st_mode)) {
    throw ValueError(fmt::format("secret file {}: it is not a regular file; make one with: cohort secret FILE", path));
  }
  if ((status.st_mode & (S_IRWXG | S_IRWXO)) != 0) {
    throw ValueError(fmt::format("secret file {}: others may read it (mode {:o}); run: chmod 600 {}", path,
                                 status.st_mode & 07777U, path));
  }
  if (status.st_uid != ::geteuid() && status.st_uid != 0) {
    throw ValueError(fmt::format("secret file {}: it belongs to user {}, not to you", path, status.st_uid));
  }
  std::array<char, 2 * size + 1> text{};
  // pread, because several processes may share the open file and its position.
  const auto n = ::pread(fd.get(), text.data(), text.size(), 0);
  Secret secret;
  bool good = n >= static_cast<ssize_t>(2 * size);
  for (std::size_t i = 0; good && i < size; ++i) {
    const auto high = hex_digit(text.at(2 * i));
    const auto low = hex_digit(text.at(2 * i + 1));
    good = high && low;
    if (good) secret.bytes_->at(i) = static_cast<std::uint8_t>(*high << 4U | *low);
  }
  good = good && (n == static_cast<ssize_t>(2 * size) || text.back() == '\n');
  OPENSSL_cleanse(text.data(), text.size());
  if (!good) {
    throw ValueError(
        fmt::format("secret file {}: it does not hold 64 hexadecimal digits; make one with: cohort secret", path));
  }
  return secret;
}

void Secret::write_new(const std::string& path) const {
  const FileDescriptor fd(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!fd) throw ValueError(fmt::format("secret file {}: {}", path, reason()));
  auto text = hex() + "\n";
  const bool is_written =
      ::write(fd.get(), text.data(), text.size()) == static_cast<ssize_t>(text.size()) && ::fsync(fd.get()) == 0;
  const auto why = reason();
  OPENSSL_cleanse(text.data(), text.size());
  if (!is_written) {
    ::unlink(path.c_str());
    throw ValueError(fmt::format("secret file {}: {}", path, why));
  }
}

std::string Secret::hex() const {
  std::string text;
  text.reserve(2 * size + 1);  // so that no half of it is left in memory that was given back
  for (const auto byte : *bytes_) text += fmt::format("{:02x}", byte);
  return text;
}

}  // namespace cohort

// SPDX-License-Identifier: BSD-3-Clause
#include "backends/shm/memory/process_memory.h"

#include <cohort/error.h>

#include <fmt/format.h>
#include <sys/uio.h>

#include <cerrno>
#include <cstring>
#include <system_error>

namespace cohort::shm {

namespace {

constexpr std::uint64_t probe_value = 0x636f'686f'7274'2121;
const std::uint64_t probe = probe_value;

/// Returns the number of bytes read, or -1 with errno set.
ssize_t read_some(pid_t pid, std::uint64_t address, void* to, std::size_t bytes) {
  const iovec local{.iov_base = to, .iov_len = bytes};
  // NOLINTNEXTLINE(performance-no-int-to-ptr): an address of another process
  const iovec remote{.iov_base = reinterpret_cast<void*>(address), .iov_len = bytes};
  return ::process_vm_readv(pid, &local, 1, &remote, 1, 0);
}

}  // namespace

void read_process(pid_t pid, std::uint64_t address, void* to, std::size_t bytes) {
  while (bytes > 0) {
    const auto got = read_some(pid, address, to, bytes);
    if (got <= 0) {
      throw BackendError(
          fmt::format("shm: reading memory of process {}: {}", pid,
                      got == 0 ? std::string("nothing is mapped there") : std::generic_category().message(errno)));
    }
    address += static_cast<std::uint64_t>(got);
    to = static_cast<std::byte*>(to) + got;
    bytes -= static_cast<std::size_t>(got);
  }
}

std::uint64_t probe_address() {
  return reinterpret_cast<std::uint64_t>(&probe);
}

bool can_read(pid_t pid, std::uint64_t address) {
  std::uint64_t value = 0;
  return read_some(pid, address, &value, sizeof(value)) == sizeof(value) && value == probe_value;
}

}  // namespace cohort::shm

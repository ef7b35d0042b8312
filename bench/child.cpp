// SPDX-License-Identifier: BSD-3-Clause
#include "child.h"

#include <fmt/format.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <stdexcept>
#include <system_error>
#include <thread>
#include <utility>

namespace cohort::bench {

namespace {

std::pair<FileDescriptor, FileDescriptor> make_line() {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) {
    throw std::system_error(errno, std::generic_category(), "socketpair");
  }
  return {FileDescriptor(ends[0]), FileDescriptor(ends[1])};
}

[[noreturn]] void run_child(const std::function<void(Channel&)>& body, FileDescriptor socket) {
  // Whatever becomes of the parent, nothing is left behind.
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  int code = 0;
  try {
    Channel channel(std::move(socket));
    body(channel);
  } catch (const std::exception& e) {
    fmt::print(stderr, "{}: in a child process: {}\n", program_invocation_short_name, e.what());
    code = 1;
  }
  // Not exit(): the parent's objects are not ours to destroy.
  ::_exit(code);
}

}  // namespace

void Channel::send_bytes(const void* from, std::size_t size) {
  if (::send(socket_.get(), from, size, MSG_NOSIGNAL) != static_cast<ssize_t>(size)) {
    throw std::runtime_error("a process of this benchmark ended early");
  }
}

void Channel::receive_bytes(void* to, std::size_t size) {
  if (::recv(socket_.get(), to, size, MSG_WAITALL) != static_cast<ssize_t>(size)) {
    throw std::runtime_error("a process of this benchmark ended early");
  }
}

void Channel::wait_for_end() {
  char ignored;
  while (::recv(socket_.get(), &ignored, 1, 0) > 0) {
  }
}

void Channel::end() {
  // Not close(): children forked later hold copies of this end.
  if (socket_) ::shutdown(socket_.get(), SHUT_RDWR);
}

Child::Child(const std::function<void(Channel&)>& body) : Child(body, make_line()) {}

Child::Child(const std::function<void(Channel&)>& body, std::pair<FileDescriptor, FileDescriptor> sockets)
    : channel_(std::move(sockets.first)) {
  pid_ = ::fork();
  if (pid_ < 0) throw std::system_error(errno, std::generic_category(), "fork");
  if (pid_ == 0) run_child(body, std::move(sockets.second));
}

Child::Child(Child&& other) noexcept : channel_(std::move(other.channel_)), pid_(std::exchange(other.pid_, -1)) {}

Child::~Child() {
  if (pid_ < 0) return;
  channel_.end();
  const auto patience = std::chrono::steady_clock::now() + std::chrono::seconds(5);
  while (::waitpid(pid_, nullptr, WNOHANG) == 0) {
    if (std::chrono::steady_clock::now() > patience) ::kill(pid_, SIGKILL);
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

}  // namespace cohort::bench

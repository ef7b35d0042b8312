// SPDX-License-Identifier: BSD-3-Clause
#include "measure/child.h"

#include <cohort/error.h>

#include <fmt/format.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <thread>

#include "common/throw_errno.h"

namespace cohort::measure {

namespace {

std::pair<FileDescriptor, FileDescriptor> make_socket_pair() {
  std::array<int, 2> ends{};
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()) != 0) tool::throw_errno("socketpair");
  return {FileDescriptor(ends[0]), FileDescriptor(ends[1])};
}

[[noreturn]] void run_child(const std::function<void(Channel&)>& body, FileDescriptor socket, pid_t parent) {
  // Whatever becomes of the parent, nothing is left behind.
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) ::_exit(1);  // it ended before the line above took effect
  int code = 0;
  try {
    Channel channel(std::move(socket));
    body(channel);
  } catch (const std::exception& e) {
    fmt::print(stderr, "{}: {}\n", program_invocation_short_name, e.what());
    code = 1;
  }
  // Not exit(): the parent's objects are not ours to destroy.
  ::_exit(code);
}

}  // namespace

void Channel::send_bytes(const void* from, std::size_t size) {
  if (::send(socket_.get(), from, size, MSG_NOSIGNAL) != static_cast<ssize_t>(size)) {
    throw Error("a process of this benchmark ended early");
  }
}

void Channel::receive_bytes(void* to, std::size_t size) {
  if (::recv(socket_.get(), to, size, MSG_WAITALL) != static_cast<ssize_t>(size)) {
    throw Error("a process of this benchmark ended early");
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

Child::Child(const std::function<void(Channel&)>& body) : Child(body, make_socket_pair()) {}

Child::Child(const std::function<void(Channel&)>& body, std::pair<FileDescriptor, FileDescriptor> sockets)
    : channel_(std::move(sockets.first)) {
  const auto parent = ::getpid();
  pid_ = ::fork();
  if (pid_ < 0) tool::throw_errno("cannot start a process");
  if (pid_ == 0) run_child(body, std::move(sockets.second), parent);
}

Child::Child(Child&& other) noexcept : channel_(std::move(other.channel_)), pid_(std::exchange(other.pid_, -1)) {}

tool::ExitStatus Child::end() {
  if (pid_ < 0) return {};
  channel_.end();
  const auto kill_at = std::chrono::steady_clock::now() + std::chrono::seconds(5);
  siginfo_t info{};
  while (::waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOWAIT | WNOHANG) == 0 && info.si_pid == 0) {
    if (std::chrono::steady_clock::now() > kill_at) ::kill(pid_, SIGKILL);
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return tool::wait_for_end(std::exchange(pid_, -1), tool::Reap::collect);
}

}  // namespace cohort::measure

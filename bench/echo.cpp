// SPDX-License-Identifier: BSD-3-Clause
#include "echo.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <system_error>
#include <thread>
#include <vector>

namespace cohort::benchmarks {

namespace {

int check(int result, const char* what) {
  if (result < 0) throw std::system_error(errno, std::generic_category(), what);
  return result;
}

sockaddr_in loopback_address(std::uint16_t port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return address;
}

void no_delay(int fd) {
  const int on = 1;
  check(::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on)), "TCP_NODELAY");
}

void watch(int epoll, int fd, std::uint32_t events) {
  epoll_event event{};
  event.events = events;
  event.data.fd = fd;
  check(::epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event), "epoll_ctl");
}

/// Ends with the process: the thread is not asked to.
void echo(int listener) {
  const FileDescriptor epoll(check(::epoll_create1(EPOLL_CLOEXEC), "epoll_create1"));
  watch(epoll.get(), listener, EPOLLIN);
  std::vector<FileDescriptor> connections;
  std::array<epoll_event, 128> events{};
  std::array<char, 65536> buffer{};
  for (;;) {
    const int n = ::epoll_wait(epoll.get(), events.data(), static_cast<int>(events.size()), -1);
    for (int i = 0; i < n; ++i) {
      const int fd = events[static_cast<std::size_t>(i)].data.fd;
      if (fd == listener) {
        connections.emplace_back(check(::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK), "accept"));
        no_delay(connections.back().get());
        watch(epoll.get(), connections.back().get(), EPOLLIN | EPOLLET);
        continue;
      }
      const auto size = ::recv(fd, buffer.data(), buffer.size(), 0);
      if (size <= 0) {
        std::erase_if(connections, [fd](const FileDescriptor& connection) { return connection.get() == fd; });
        continue;
      }
      ::send(fd, buffer.data(), static_cast<std::size_t>(size), MSG_NOSIGNAL);
    }
  }
}

}  // namespace

void serve_echo(Channel& parent) {
  const FileDescriptor listener(check(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0), "socket"));
  auto address = loopback_address(0);
  check(::bind(listener.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), "bind");
  check(::listen(listener.get(), SOMAXCONN), "listen");
  socklen_t size = sizeof(address);
  check(::getsockname(listener.get(), reinterpret_cast<sockaddr*>(&address), &size), "getsockname");
  // On a thread, as our server is.
  std::thread([&listener] { echo(listener.get()); }).detach();
  parent.send(ntohs(address.sin_port));
  parent.wait_for_end();
  ::_exit(0);
}

EchoClient::EchoClient(std::uint16_t port, std::size_t message_size)
    : socket_(check(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), "socket")), message_(message_size, 'x') {
  const auto address = loopback_address(port);
  check(::connect(socket_.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)), "connect");
  no_delay(socket_.get());
}

void EchoClient::round_trip() {
  check(static_cast<int>(::send(socket_.get(), message_.data(), message_.size(), MSG_NOSIGNAL)), "send");
  std::size_t got = 0;
  while (got < message_.size()) {
    const auto n =
        check(static_cast<int>(::recv(socket_.get(), message_.data() + got, message_.size() - got, 0)), "recv");
    if (n == 0) throw std::system_error(ECONNRESET, std::generic_category(), "recv");
    got += static_cast<std::size_t>(n);
  }
}

}  // namespace cohort::benchmarks

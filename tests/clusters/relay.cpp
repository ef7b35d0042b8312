// SPDX-License-Identifier: BSD-3-Clause
#include "relay.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <linux/if_ether.h>
#include <linux/if_packet.h>
#include <net/if.h>
#include <poll.h>
#include <sched.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <algorithm>
#include <exception>
#include <stdexcept>

namespace cohort::test {

namespace {

/// The largest frame before it is segmented, and the header in front of it.
constexpr std::size_t largest_frame = 80 * 1024;
constexpr int receive_bytes = 16 << 20;

FileDescriptor open_port(const std::string& name) {
  FileDescriptor socket(::socket(AF_PACKET, SOCK_RAW | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket) throw std::runtime_error("no packet sockets");
  // Checksums and the segmentation of large frames are left to the other end, as between virtual machines.
  const int on = 1;
  if (::setsockopt(socket.get(), SOL_PACKET, PACKET_VNET_HDR, &on, sizeof(on)) != 0) {
    throw std::runtime_error("no PACKET_VNET_HDR");
  }
  // The relay must not receive the frames it sends.
  ::setsockopt(socket.get(), SOL_PACKET, PACKET_IGNORE_OUTGOING, &on, sizeof(on));
  ::setsockopt(socket.get(), SOL_SOCKET, SO_RCVBUFFORCE, &receive_bytes, sizeof(receive_bytes));
  sockaddr_ll address{};
  address.sll_family = AF_PACKET;
  address.sll_protocol = htons(ETH_P_ALL);
  address.sll_ifindex = static_cast<int>(::if_nametoindex(name.c_str()));
  if (::bind(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) {
    throw std::runtime_error("no packet socket at " + name);
  }
  return socket;
}

/// Runs on a thread of its own, whose namespace ends with it; the sockets stay in that namespace.
std::vector<FileDescriptor> open_ports(const Hosts& hosts) {
  std::vector<FileDescriptor> ports;
  std::exception_ptr failed;
  std::thread([&] {
    try {
      const FileDescriptor network(::open(hosts.network_of_switch().c_str(), O_RDONLY | O_CLOEXEC));
      if (::setns(network.get(), CLONE_NEWNET) != 0) throw std::runtime_error("setns");
      for (int host = 0; host < hosts.count(); ++host) ports.push_back(open_port(Hosts::port(host)));
    } catch (...) {
      failed = std::current_exception();
    }
  }).join();
  if (failed) std::rethrow_exception(failed);
  return ports;
}

}  // namespace

Relay::Relay(const Hosts& hosts, NetworkConditions conditions)
    : conditions_(conditions),
      ports_(open_ports(hosts)),
      stop_(::eventfd(0, EFD_CLOEXEC)),
      room_(largest_frame),
      thread_([this] { work(); }) {}

Relay::~Relay() {
  const std::uint64_t one = 1;
  static_cast<void>(!::write(stop_.get(), &one, sizeof(one)));
  thread_.join();
}

void Relay::work() {
  std::vector<pollfd> items{{stop_.get(), POLLIN, 0}};
  for (const auto& port : ports_) items.push_back({port.get(), POLLIN, 0});
  for (;;) {
    int time_left = -1;
    if (!under_way_.empty()) {
      const auto left = std::chrono::ceil<std::chrono::milliseconds>(under_way_.front().due - Clock::now());
      time_left = std::max(0, static_cast<int>(left.count()));
    }
    ::poll(items.data(), items.size(), time_left);
    if (items[0].revents != 0) return;
    for (std::size_t port = 0; port < ports_.size(); ++port) take(port);
    while (!under_way_.empty() && under_way_.front().due <= Clock::now()) {
      hand_on(under_way_.front());
      under_way_.pop_front();
    }
  }
}

void Relay::take(std::size_t port) {
  std::bernoulli_distribution is_lost(conditions_.loss);
  for (;;) {
    const auto bytes = ::recv(ports_[port].get(), room_.data(), room_.size(), 0);
    if (bytes <= 0) return;
    if (is_lost(random_)) {
      ++lost_;
      continue;
    }
    under_way_.push_back({.due = Clock::now() + conditions_.delay,
                          .from = port,
                          .bytes = {room_.begin(), room_.begin() + static_cast<std::ptrdiff_t>(bytes)}});
  }
}

/// Forwards the frame to all other ports; hosts drop frames that are not addressed to them.
void Relay::hand_on(const Frame& frame) {
  const auto silent = silent_.load();
  if ((silent >> frame.from & 1U) != 0) return;
  for (std::size_t port = 0; port < ports_.size(); ++port) {
    if (port == frame.from || (silent >> port & 1U) != 0) continue;
    static_cast<void>(::send(ports_[port].get(), frame.bytes.data(), frame.bytes.size(), 0));
  }
}

}  // namespace cohort::test

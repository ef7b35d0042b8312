// SPDX-License-Identifier: BSD-3-Clause
//
// A part of a benchmark in a process of its own, and the connection to it.
//
//   Child server([](Channel& parent) {
//     const StoreServer store(...);
//     parent.send(store.endpoint().port);
//     parent.wait_for_end();
//   });
//   const auto port = server.channel().receive<std::uint16_t>();
//
// Made by fork() without exec: the process that makes one must have no threads at that moment.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <functional>
#include <type_traits>
#include <utility>

#include "common/exit_status.h"
#include "core/file_descriptor.h"

namespace cohort::measure {

/// Plain values to and from the process at the other end. Throws an Error when that process has ended.
class Channel {
 public:
  explicit Channel(FileDescriptor socket) : socket_(std::move(socket)) {}

  template <class T>
    requires std::is_trivially_copyable_v<T>
  void send(const T& value) {
    send_bytes(&value, sizeof(T));
  }

  template <class T>
    requires std::is_trivially_copyable_v<T>
  T receive() {
    T value;
    receive_bytes(&value, sizeof(T));
    return value;
  }

  /// Returns when the other end has called end().
  void wait_for_end();
  void end();

 private:
  void send_bytes(const void* from, std::size_t size);
  void receive_bytes(void* to, std::size_t size);

  FileDescriptor socket_;
};

class Child {
 public:
  /// What `body` throws is printed, and the child's exit code is 1.
  explicit Child(const std::function<void(Channel&)>& body);
  ~Child() { end(); }
  Child(Child&& other) noexcept;
  Child& operator=(Child&&) = delete;
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  Channel& channel() { return channel_; }
  pid_t pid() const { return pid_; }
  /// Ends the channel and waits until the child has ended; after five seconds it is killed.
  tool::ExitStatus end();

 private:
  explicit Child(const std::function<void(Channel&)>& body, std::pair<FileDescriptor, FileDescriptor> sockets);

  Channel channel_;
  pid_t pid_ = -1;  // -1: has ended
};

}  // namespace cohort::measure

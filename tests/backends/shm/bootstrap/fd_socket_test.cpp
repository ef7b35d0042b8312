// SPDX-License-Identifier: BSD-3-Clause
#include "backends/shm/bootstrap/fd_socket.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <string>

#include "backends/shm/memory/segment.h"
#include "support/expect_error.h"

namespace cohort::test {
namespace {

using namespace std::chrono_literals;

/// The two ends of a connection.
struct Connection {
  std::string name = "cohort/test/" + std::to_string(::getpid());
  FileDescriptor listener = shm::listen_abstract(name, 1);
  FileDescriptor client = shm::connect_abstract(name);
  FileDescriptor server = shm::accept_trusted(listener.get()).value();
};

TEST(FdSocketTest, MemoryIsSharedThroughADescriptor) {
  const Connection connection;
  const auto mine = shm::make_memfd("test", 8192);
  const auto written = shm::map_memfd(shm::duplicate(mine));
  written->reserve(0, written->size());
  written->base()[5000] = std::byte{42};
  const int fd = mine.get();
  shm::send_message(connection.client.get(), "memory", {&fd, 1}, Deadline::after(10s));
  auto message = shm::receive_message(connection.server.get(), Deadline::after(10s));
  EXPECT_EQ(message.bytes, "memory");
  ASSERT_EQ(message.fds.size(), 1U);
  const auto read = shm::map_memfd(std::move(message.fds[0]));
  EXPECT_EQ(read->size(), 8192U);
  EXPECT_EQ(read->base()[5000], std::byte{42});
  EXPECT_EQ(shm::peer_pid(connection.server.get()), ::getpid());
}

TEST(FdSocketTest, AnEndThatSaysNothingOrIsGone) {
  Connection connection;
  EXPECT_ERROR(TimeoutError, shm::receive_message(connection.server.get(), Deadline::after(20ms)),
               "a peer does not answer");
  EXPECT_FALSE(shm::accept_trusted(connection.listener.get()).has_value());
  connection.client.reset();
  EXPECT_TRUE(shm::receive_message(connection.server.get(), Deadline::after(10s)).bytes.empty());
  EXPECT_ERROR(SocketError, shm::connect_abstract("cohort/test/nobody"), "are all ranks on one host?");
}

TEST(FdSocketTest, MemoryWhoseSizeCouldChangeIsNotMapped) {
  std::array<int, 2> ends{};
  ASSERT_EQ(::pipe(ends.data()), 0);
  ::close(ends[1]);
  EXPECT_ERROR(BackendError, shm::map_memfd(FileDescriptor(ends[0])), "not sealed");
}

}  // namespace
}  // namespace cohort::test

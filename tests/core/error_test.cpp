// SPDX-License-Identifier: BSD-3-Clause
#include <cohort/error.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace cohort::test {
namespace {

template <class E, class Base>
bool is_caught_as_one() {
  try {
    throw E("m");
  } catch (const Base&) {
    return true;
  } catch (...) {
    return false;
  }
}

template <class E, class... Bases>
bool is_caught_as() {
  return (... && is_caught_as_one<E, Bases>());
}

TEST(ErrorTest, FamilyIsTheSpecifiedOne) {
  EXPECT_TRUE((is_caught_as<ValueError, Error, std::runtime_error, std::exception>()));
  EXPECT_TRUE((is_caught_as<OperationTimeoutError, BackendError, DistributedError, Error>()));
  EXPECT_TRUE((is_caught_as<PeerLostError, BackendError>()));
  EXPECT_TRUE((is_caught_as<MismatchError, BackendError>()));
  EXPECT_TRUE((is_caught_as<AbortedError, BackendError>()));
  EXPECT_TRUE((is_caught_as<StoreTimeoutError, StoreError, DistributedError>()));
  EXPECT_TRUE((is_caught_as<QueueEmptyError, StoreError>()));
  EXPECT_TRUE((is_caught_as<SocketError, NetworkError, DistributedError>()));
  EXPECT_TRUE((is_caught_as<TimeoutError, NetworkError>()));
  EXPECT_FALSE((is_caught_as<TimeoutError, StoreError>()));
  EXPECT_FALSE((is_caught_as<KeyError, DistributedError>()));
}

TEST(ErrorTest, EachClassHasTheKindOfTheTable) {
  EXPECT_EQ(Error("m").kind(), ErrorKind::error);
  EXPECT_EQ(ValueError("m").kind(), ErrorKind::value);
  EXPECT_EQ(TypeError("m").kind(), ErrorKind::type);
  EXPECT_EQ(KeyError("m").kind(), ErrorKind::key);
  EXPECT_EQ(IndexError("m").kind(), ErrorKind::index);
  EXPECT_EQ(AssertionError("m").kind(), ErrorKind::assertion);
  EXPECT_EQ(NotSupportedError("m").kind(), ErrorKind::not_supported);
  EXPECT_EQ(DistributedError("m").kind(), ErrorKind::distributed);
  EXPECT_EQ(BackendError("m").kind(), ErrorKind::backend);
  EXPECT_EQ(PeerLostError("m").kind(), ErrorKind::peer_lost);
  EXPECT_EQ(MismatchError("m").kind(), ErrorKind::mismatch);
  EXPECT_EQ(AbortedError("m").kind(), ErrorKind::aborted);
  EXPECT_EQ(StoreError("m").kind(), ErrorKind::store);
  EXPECT_EQ(QueueEmptyError("m").kind(), ErrorKind::queue_empty);
  EXPECT_EQ(NetworkError("m").kind(), ErrorKind::network);
  EXPECT_EQ(SocketError("m").kind(), ErrorKind::socket);
}

TEST(ErrorTest, AnyTimeoutIsToldByItsKind) {
  EXPECT_EQ(OperationTimeoutError("m").kind(), ErrorKind::timeout);
  EXPECT_EQ(StoreTimeoutError("m").kind(), ErrorKind::timeout);
  EXPECT_EQ(TimeoutError("m").kind(), ErrorKind::timeout);
  EXPECT_EQ(to_string(ErrorKind::timeout), "timeout");
  EXPECT_EQ(to_string(ErrorKind::error), "error");
  EXPECT_EQ(to_string(ErrorKind::socket), "socket");
}

TEST(ErrorTest, WhatCarriesTheContext) {
  const PeerLostError error("connection reset", {.group = "g7", .op = "all_reduce", .sequence = 12, .rank = 3});
  EXPECT_STREQ(error.what(), "connection reset [group g7, op all_reduce, seq 12, rank 3]");
  EXPECT_EQ(error.message(), "connection reset");
  EXPECT_EQ(error.context().rank, 3);
  EXPECT_STREQ(Error("alone").what(), "alone");
  EXPECT_STREQ(Error("who", {.rank = 0}).what(), "who [rank 0]");
}

TEST(ErrorTest, KeepsItsCause) {
  try {
    try {
      throw SocketError("below");
    } catch (...) {
      throw BackendError("above", {.cause = std::current_exception()});
    }
  } catch (const Error& e) {
    ASSERT_TRUE(e.context().cause);
    EXPECT_THROW(std::rethrow_exception(e.context().cause), SocketError);
  }
}

}  // namespace
}  // namespace cohort::test

// SPDX-License-Identifier: BSD-3-Clause
#include <cohort/file_store.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "support/expect_error.h"
#include "support/ranks.h"
#include "support/temporary.h"

namespace cohort::test {
namespace {

using namespace std::chrono_literals;
namespace fs = std::filesystem;

TEST(FileStoreTest, ConcurrentProcessesWrite) {
  const TemporaryFolder folder;
  const auto path = folder / "store";
  as_processes(4, [&](int rank) {
    FileStore store(path, 4);
    for (int i = 0; i < 25; ++i) store.add("sum", 1);
    store.set("rank" + std::to_string(rank), std::string(1000, static_cast<char>('a' + rank)));
    for (int peer = 0; peer < 4; ++peer) {
      EXPECT_EQ(store.get("rank" + std::to_string(peer), 20s), std::string(1000, static_cast<char>('a' + peer)));
    }
    store.add("read", 1);
    store.wait({"read"});
    while (store.get("read") != "4") {
    }
    EXPECT_EQ(store.get("sum"), "100");
    return 0;
  });
  EXPECT_FALSE(fs::exists(path)) << "the last user removes the file";
}

TEST(FileStoreTest, StaysUntilAllHaveJoined) {
  const TemporaryFolder folder;
  const auto path = folder / "store";
  {
    FileStore first(path, 2);
    first.set("from first", "v");
  }
  EXPECT_TRUE(fs::exists(path)) << "the second rank has not been here yet";
  {
    FileStore second(path, 2);
    EXPECT_EQ(second.get("from first"), "v");
  }
  EXPECT_FALSE(fs::exists(path));
}

TEST(FileStoreTest, ClonesAreNotUsers) {
  const TemporaryFolder folder;
  const auto path = folder / "store";
  {
    FileStore first(path, 2);
    const auto clone = first.clone();
    clone->set("k", "v");
  }
  EXPECT_TRUE(fs::exists(path));
}

TEST(FileStoreTest, WithoutWorldSizeTheFileStays) {
  const TemporaryFolder folder;
  const auto path = folder / "store";
  FileStore(path).set("k", "v");
  EXPECT_TRUE(fs::exists(path));
  EXPECT_EQ(FileStore(path).get("k"), "v");
}

TEST(FileStoreTest, AKilledUserDoesNotKeepTheFile) {
  const TemporaryFolder folder;
  const auto path = folder / "store";
  {
    FileStore survivor(path, 2);
    Process victim([&] {
      FileStore store(path, 2);
      store.set("victim", "here");
      ::pause();
      return 0;
    });
    EXPECT_EQ(survivor.get("victim", 20s), "here");
    victim.signal(SIGKILL);
    EXPECT_EQ(victim.wait(), 128 + SIGKILL);
    survivor.set("still", "working");
    EXPECT_EQ(survivor.get("still"), "working");
  }
  EXPECT_FALSE(fs::exists(path));
}

TEST(FileStoreTest, WhatAKilledJobLeftIsEmptied) {
  const TemporaryFolder folder;
  const auto path = folder / "store";
  {
    Process job([&] {
      FileStore a(path, 2);
      FileStore b(path, 2);
      a.set("old", "value");
      ::kill(::getpid(), SIGKILL);
      return 0;
    });
    EXPECT_EQ(job.wait(), 128 + SIGKILL);
  }
  ASSERT_TRUE(fs::exists(path));
  FileStore fresh(path, 2);
  EXPECT_FALSE(fresh.check({"old"}));
}

TEST(FileStoreTest, AWriterKilledHalfWayCorruptsNothing) {
  const TemporaryFolder folder;
  const auto path = folder / "store";
  FileStore store(path);
  store.set("k", "v");
  {
    // What a writer leaves that dies between its record and the commit.
    std::ofstream torn(path, std::ios::app | std::ios::binary);
    torn << std::string("\x01\xff\xff\x00\x00half a rec", 15);
  }
  FileStore reader(path);
  EXPECT_EQ(reader.get("k"), "v");
  reader.set("next", "fine");
  EXPECT_EQ(store.get("next"), "fine");
}

TEST(FileStoreTest, AStoppedLockHolderCostsOnlyTheDeadline) {
  const TemporaryFolder folder;
  const auto path = folder / "store";
  FileStore store(path);
  // Hold the store's lock from another process, as one that was stopped in the middle of a write does.
  int ready[2];
  ASSERT_EQ(::pipe(ready), 0);
  Process holder([&] {
    const int fd = ::open(path.c_str(), O_RDWR);
    struct flock lock {};
    lock.l_type = F_WRLCK;
    lock.l_len = 1;
    if (::fcntl(fd, F_OFD_SETLK, &lock) != 0) return 1;
    if (::write(ready[1], "x", 1) != 1) return 2;
    ::pause();
    return 0;
  });
  char byte = 0;
  ASSERT_EQ(::read(ready[0], &byte, 1), 1);
  const auto took = time_of([&] { EXPECT_ERROR(StoreTimeoutError, store.set("k", "v", 200ms), "locked"); });
  EXPECT_GE(took, 200ms);
  EXPECT_LT(took, 2s);
  holder.signal(SIGKILL);
  holder.wait();
  store.set("k", "v");
  ::close(ready[0]);
  ::close(ready[1]);
}

TEST(FileStoreTest, RefusesWhatIsNotAStore) {
  const TemporaryFolder folder;
  const auto path = folder / "notes.txt";
  std::ofstream(path) << "somebody's notes, longer than the header of a store would be, for a fair comparison";
  const auto before = fs::file_size(path);
  EXPECT_ERROR(StoreError, FileStore(path, 2), "not a Cohort store");
  EXPECT_EQ(fs::file_size(path), before) << "a file that is not ours is not touched";
  EXPECT_ERROR(ValueError, FileStore(folder / "x", 0), "world size of 0");
}

/// A store that another job has left, to be adopted, and how it is made into something that must not be.
struct Foreign {
  const char* name;
  void (*make)(const std::string& path);
  const char* error;
  bool needs_root = false;
};

class FileStoreOfOthers : public testing::TestWithParam<Foreign> {};

TEST_P(FileStoreOfOthers, IsRefusedAndLeftAsItIs) {
  const auto& foreign = GetParam();
  if (foreign.needs_root && ::geteuid() != 0) GTEST_SKIP() << "needs root to act as another user";
  const TemporaryFolder folder;
  const auto path = folder / "store";
  FileStore(path).set("k", "v");
  foreign.make(path);
  struct stat before {};
  ASSERT_EQ(::lstat(path.c_str(), &before), 0);
  const auto took = time_of([&] { EXPECT_ERROR(StoreError, FileStore(path, 2, 20s), foreign.error); });
  EXPECT_LT(took, 10s) << "waiting would not help";
  struct stat after {};
  ASSERT_EQ(::lstat(path.c_str(), &after), 0);
  EXPECT_EQ(before.st_ino, after.st_ino);
  EXPECT_EQ(before.st_mode, after.st_mode);
  EXPECT_EQ(before.st_size, after.st_size);
}

INSTANTIATE_TEST_SUITE_P(
    , FileStoreOfOthers,
    testing::Values(Foreign{"SymbolicLink",
                            [](const std::string& path) {
                              fs::rename(path, path + ".target");
                              fs::create_symlink(path + ".target", path);
                            },
                            "symbolic link"},
                    Foreign{"Fifo",
                            [](const std::string& path) {
                              fs::remove(path);
                              ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
                            },
                            "not a regular file"},
                    Foreign{"Folder",
                            [](const std::string& path) {
                              fs::remove(path);
                              fs::create_directory(path);
                            },
                            "not a regular file"},
                    Foreign{"ReadableByAll", [](const std::string& path) { ASSERT_EQ(::chmod(path.c_str(), 0644), 0); },
                            "mode 644"},
                    Foreign{"WritableByTheGroup",
                            [](const std::string& path) { ASSERT_EQ(::chmod(path.c_str(), 0660), 0); }, "mode 660"},
                    Foreign{"OtherUsersFile",
                            [](const std::string& path) { ASSERT_EQ(::chown(path.c_str(), 65534, 65534), 0); },
                            "belongs to user 65534", true}),
    [](const auto& tested) { return tested.param.name; });

TEST(FileStoreTest, AnotherUsersFileIsNotAdoptedWhateverItsMode) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root to act as another user";
  const TemporaryFolder folder;
  ASSERT_EQ(::chmod((folder / "").c_str(), 01777), 0);
  const auto path = folder / "store";
  FileStore(path).set("k", "v");
  ASSERT_EQ(::chown(path.c_str(), 65534, 65534), 0);
  for (const auto mode : {0600U, 0666U}) {
    ASSERT_EQ(::chmod(path.c_str(), mode), 0);
    as_processes(1, [&](int) {
      if (::setuid(65533) != 0) return 1;
      EXPECT_ERROR(StoreError, FileStore(path, 2, 20s), "belongs to user 65534, not to you (user 65533)");
      return 0;
    });
  }
}

TEST(FileStoreTest, ACloneOfAReplacedFileIsRefused) {
  const TemporaryFolder folder;
  const auto path = folder / "store";
  FileStore store(path);
  fs::rename(path, path + ".old");
  FileStore other(path);
  EXPECT_ERROR(StoreError, store.clone(), "replaced while in use");
}

TEST(FileStoreTest, WaitsForItsFolder) {
  const TemporaryFolder folder;
  const auto missing = folder / "not-yet";
  EXPECT_ERROR(StoreError, FileStore(missing + "/store", 1, 50ms), "folder did not appear");
  std::thread later([&] { fs::create_directory(missing); });
  FileStore store(missing + "/store", 1, 10s);
  later.join();
  store.set("k", "v");
}

}  // namespace
}  // namespace cohort::test

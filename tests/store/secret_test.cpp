// SPDX-License-Identifier: BSD-3-Clause
#include <cohort/secret.h>
#include <cohort/store_server.h>
#include <cohort/tcp_store.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <span>
#include <string_view>
#include <vector>

#include "core/file_descriptor.h"
#include "support/expect_error.h"
#include "support/temporary.h"

namespace cohort::test {
namespace {

TEST(SecretTest, RoundTripThroughAPrivateFile) {
  const TemporaryFolder folder;
  const auto path = folder / "secret";
  const auto secret = Secret::generate();
  secret.write_new(path);
  struct stat status {};
  ASSERT_EQ(::stat(path.c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0600U);
  EXPECT_EQ(Secret::load(path).hex(), secret.hex());
  EXPECT_EQ(secret.hex().size(), 64U);
  EXPECT_NE(Secret::generate().hex(), secret.hex());
}

TEST(SecretTest, NeverOverwrites) {
  const TemporaryFolder folder;
  const auto path = folder / "secret";
  const auto secret = Secret::generate();
  secret.write_new(path);
  EXPECT_ERROR(ValueError, Secret::generate().write_new(path), "File exists");
  EXPECT_EQ(Secret::load(path).hex(), secret.hex());
}

TEST(SecretTest, RefusesWhatOthersCanRead) {
  const TemporaryFolder folder;
  const auto path = folder / "secret";
  Secret::generate().write_new(path);
  std::filesystem::permissions(path, std::filesystem::perms(0640));
  EXPECT_ERROR(ValueError, Secret::load(path), "chmod 600");
}

TEST(SecretTest, RefusesWhatIsNotARegularFile) {
  const TemporaryFolder folder;
  const auto fifo = folder / "fifo";
  ASSERT_EQ(::mkfifo(fifo.c_str(), 0600), 0);
  EXPECT_ERROR(ValueError, Secret::load(fifo), "not a regular file");
  std::filesystem::create_directory(folder / "directory");
  EXPECT_ERROR(ValueError, Secret::load(folder / "directory"), "not a regular file");
  EXPECT_ERROR(ValueError, Secret::load("/dev/zero"), "not a regular file");
}

/// A part of this process's memory.
struct Mapping {
  std::uintptr_t begin = 0;
  std::uintptr_t end = 0;
  bool is_writable = false;
  bool is_dumped = true;
};

std::vector<Mapping> mappings() {
  std::vector<Mapping> found;
  std::ifstream smaps("/proc/self/smaps");
  for (std::string line; std::getline(smaps, line);) {
    Mapping mapping;
    std::string access(4, ' ');
    if (std::sscanf(line.c_str(), "%lx-%lx %4c", &mapping.begin, &mapping.end, access.data()) == 3) {
      mapping.is_writable = access[1] == 'w';
      found.push_back(mapping);
    } else if (line.starts_with("VmFlags:")) {
      found.back().is_dumped = line.find(" dd") == std::string::npos;
    }
  }
  return found;
}

/// Whether a core dump would contain these bytes, which have to lie in memory that it does not contain.
bool is_in_core_dump(std::span<const std::uint8_t> bytes) {
  const std::string_view needle(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  const FileDescriptor memory(::open("/proc/self/mem", O_RDONLY | O_CLOEXEC));
  std::string chunk(1U << 20U, '\0');
  for (const auto& mapping : mappings()) {
    if (!mapping.is_writable || !mapping.is_dumped) continue;
    for (auto at = mapping.begin; at < mapping.end;) {
      const auto n = ::pread(memory.get(), chunk.data(), std::min<std::size_t>(chunk.size(), mapping.end - at),
                             static_cast<off_t>(at));
      if (n <= 0) break;  // memory of a device
      if (std::string_view(chunk.data(), static_cast<std::size_t>(n)).find(needle) != std::string_view::npos)
        return true;
      at += static_cast<std::uintptr_t>(n);
    }
  }
  return false;
}

TEST(SecretTest, IsLeftOutOfCoreDumps) {
  const TemporaryFolder folder;
  const auto path = folder / "secret";
  Secret::generate().write_new(path);
  const auto loaded = Secret::load(path);
  const auto made = Secret::generate();
  for (const auto* const secret : {&loaded, &made}) {
    // Used as a job does.
    StoreServer server({.endpoint = Endpoint::tcp("127.0.0.1", 0), .secret = *secret});
    TcpStore({.endpoint = server.endpoint(), .secret = *secret}).set("k", "v");
    const auto bytes = secret->bytes();
    const auto address = reinterpret_cast<std::uintptr_t>(bytes.data());
    for (const auto& mapping : mappings()) {
      if (mapping.begin <= address && address < mapping.end) {
        EXPECT_FALSE(mapping.is_dumped);
      }
    }
    EXPECT_FALSE(is_in_core_dump(bytes));
  }
  // The search does find what is there: a copy in ordinary memory.
  const std::vector<std::uint8_t> copy(made.bytes().begin(), made.bytes().end());
  EXPECT_TRUE(is_in_core_dump(made.bytes()));
}

TEST(SecretTest, RefusesMissingAndMalformedFiles) {
  const TemporaryFolder folder;
  EXPECT_ERROR(ValueError, Secret::load(folder / "none"), "cohort secret");
  const auto path = folder / "bad";
  for (const auto& text : {std::string("short"), std::string(64, 'g'), std::string(65, 'a'), std::string()}) {
    std::ofstream(path) << text;
    std::filesystem::permissions(path, std::filesystem::perms(0600));
    EXPECT_ERROR(ValueError, Secret::load(path), "64 hexadecimal digits");
  }
}

}  // namespace
}  // namespace cohort::test

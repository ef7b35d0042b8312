// SPDX-License-Identifier: BSD-3-Clause
#include <cohort/secret.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>

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

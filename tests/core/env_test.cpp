// SPDX-License-Identifier: BSD-3-Clause
#include <cohort/env.h>

#include <fstream>
#include <iterator>
#include <set>

#include "support/expect_error.h"

namespace cohort::test {
namespace {

TEST(EnvTest, Defaults) {
  const auto env = Env::from({});
  EXPECT_EQ(env.log_level, LogLevel::warn);
  EXPECT_FALSE(env.insecure);
  EXPECT_TRUE(env.store.empty());
  EXPECT_FALSE(env.store_port);
  EXPECT_EQ(env.text("RANK"), "");
  EXPECT_FALSE(env.integer("RANK"));
}

TEST(EnvTest, ReadsEachVariable) {
  const auto env = Env::from({{"COHORT_LOG", "Debug"},
                              {"COHORT_STORE", "unix:@x"},
                              {"COHORT_STORE_PORT", "1234"},
                              {"COHORT_SECRET_FILE", "/s"},
                              {"COHORT_INSECURE", "yes"},
                              {"COHORT_RUN_ID", "r"},
                              {"COHORT_TLS_CA", "a"},
                              {"COHORT_TLS_CERT", "b"},
                              {"COHORT_TLS_KEY", "c"},
                              {"COHORT_TLS_NAME", "d"},
                              {"RANK", "7"}});
  EXPECT_EQ(env.log_level, LogLevel::debug);
  EXPECT_EQ(env.store, "unix:@x");
  EXPECT_EQ(env.store_port, 1234);
  EXPECT_EQ(env.secret_file, "/s");
  EXPECT_TRUE(env.insecure);
  EXPECT_EQ(env.run_id, "r");
  EXPECT_EQ(env.tls_ca + env.tls_cert + env.tls_key + env.tls_name, "abcd");
  EXPECT_EQ(env.integer("RANK"), 7);
  EXPECT_EQ(env.with("RANK", "8").integer("RANK"), 8);
}

TEST(EnvTest, MalformedValuesNameTheVariable) {
  EXPECT_ERROR(ValueError, Env::from({{"COHORT_LOG", "loud"}}), "COHORT_LOG");
  EXPECT_ERROR(ValueError, Env::from({{"COHORT_INSECURE", "maybe"}}), "COHORT_INSECURE");
  EXPECT_ERROR(ValueError, Env::from({{"COHORT_STORE_PORT", "70000"}}), "COHORT_STORE_PORT");
  EXPECT_ERROR(ValueError, Env::from({{"RANK", "one"}}).integer("RANK"), "RANK");
}

TEST(EnvTest, EveryVariableIsDocumented) {
  std::ifstream file(ENVIRONMENT_PAGE);
  const std::string page((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  for (const auto& variable : Env::known()) {
    EXPECT_THAT(page, ::testing::HasSubstr("`" + std::string(variable.name) + "`")) << "in docs/environment.md";
  }
}

TEST(EnvTest, EveryVariableIsListedOnce) {
  std::set<std::string_view> names;
  for (const auto& variable : Env::known()) {
    EXPECT_TRUE(names.insert(variable.name).second) << variable.name;
    EXPECT_FALSE(variable.meaning.empty());
  }
  EXPECT_ERROR(AssertionError, Env::from({}).text("HOME"), "not listed");
}

}  // namespace
}  // namespace cohort::test

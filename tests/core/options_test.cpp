// SPDX-License-Identifier: BSD-3-Clause
#include <cohort/options.h>

#include "support/expect_error.h"

namespace cohort::test {
namespace {

using namespace std::chrono_literals;

TEST(OptionsTest, HoldEveryKindOfValue) {
  const auto handle = std::make_shared<int>(7);
  const Options options{{"flag", true},
                        {"count", 3},
                        {"ratio", 0.5},
                        {"name", "x"},
                        {"timeout", 5s},
                        {"ranks", std::vector<std::int64_t>{0, 2}},
                        {"config", {{"min_ctas", 4}}},
                        {"parent", handle}};
  OptionReader read(options, "test");
  EXPECT_TRUE(read.get("flag", false));
  EXPECT_EQ(read.get("count", 0), 3);
  EXPECT_EQ(read.get("ratio", 0.0), 0.5);
  EXPECT_EQ(read.get("name", ""), "x");
  EXPECT_EQ(read.get("timeout", 0ms), 5000ms);
  EXPECT_EQ(read.get("ranks", std::vector<std::int64_t>{}), (std::vector<std::int64_t>{0, 2}));
  const auto config = read.get("config", Options());
  EXPECT_EQ(OptionReader(config, "config").get("min_ctas", 0), 4);
  EXPECT_EQ(read.get_handle("parent"), handle);
  EXPECT_EQ(read.get("absent", 9), 9);
  EXPECT_EQ(read.get_handle("no parent"), nullptr);
  read.finish();
}

TEST(OptionsTest, UnknownKeysAreRefusedWithASuggestion) {
  const Options options{{"is_high_prority_stream", true}};
  OptionReader read(options, "nccl");
  EXPECT_FALSE(read.get("is_high_priority_stream", false));
  EXPECT_ERROR(KeyError, read.finish(), "did you mean \"is_high_priority_stream\"");
  EXPECT_ERROR(KeyError, OptionReader(options, "gloo").finish(), "gloo takes no options");
  OptionReader far(options, "mpi");
  static_cast<void>(far.get("x", 0));
  const auto message = message_of<KeyError>([&] { far.finish(); });
  EXPECT_THAT(message, ::testing::Not(::testing::HasSubstr("did you mean")));
}

TEST(OptionsTest, WrongTypesAreRefused) {
  const Options options{{"count", "three"}, {"big", 1LL << 40}, {"whole", 2}};
  OptionReader read(options, "test");
  EXPECT_ERROR(TypeError, static_cast<void>(read.get("count", 0)), "type integer, not string");
  EXPECT_ERROR(ValueError, static_cast<void>(read.get("big", 0)), "out of range");
  EXPECT_EQ(read.get("big", std::int64_t{0}), 1LL << 40);
  EXPECT_EQ(read.get("whole", 0.0), 2.0) << "an integer serves as a real";
}

TEST(OptionsTest, SitUnderTheirDevice) {
  const Options options{{"cuda", {{"is_high_priority_stream", true}}}};
  EXPECT_TRUE(options.for_device(DeviceType::cuda).contains("is_high_priority_stream"));
  EXPECT_TRUE(options.for_device(DeviceType::cpu).empty());
  EXPECT_ERROR(KeyError, Options({{"threads", 4}}).for_device(DeviceType::cpu), "\"threads\" stands outside a device");
  EXPECT_THROW(Options({{"cpu", 4}}).for_device(DeviceType::cpu), KeyError);
}

TEST(OptionsTest, AreValues) {
  Options a{{"k", 1}};
  auto b = a;
  b.set("k", 2);
  EXPECT_EQ(OptionReader(a, "a").get("k", 0), 1);
  EXPECT_EQ(OptionReader(b, "b").get("k", 0), 2);
  auto c = std::move(b);
  EXPECT_TRUE(b.empty());  // NOLINT(bugprone-use-after-move): documented
  EXPECT_FALSE(c.empty());
  c = a;
  EXPECT_EQ(OptionReader(c, "c").get("k", 0), 1);
  EXPECT_ERROR(KeyError, (Options{{"k", 1}, {"k", 2}}), "twice");
}

}  // namespace
}  // namespace cohort::test

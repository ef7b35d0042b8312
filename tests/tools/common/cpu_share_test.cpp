// SPDX-License-Identifier: BSD-3-Clause
#include "common/cpu_share.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "support/temporary.h"

namespace {

using namespace cohort::tool;
using cohort::test::TemporaryFolder;

/// A made-up root with cgroup files.
class Root {
 public:
  void write(const std::string& path, const std::string& text) const {
    const std::filesystem::path file(folder_ / path);
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << text;
  }
  std::optional<double> quota() const { return cgroup_cpu_quota(folder_ / ""); }

 private:
  TemporaryFolder folder_;
};

TEST(CgroupQuota, NoneWhereThereIsNoGroupOrNoLimit) {
  const Root root;
  EXPECT_EQ(root.quota(), std::nullopt);
  root.write("proc/self/cgroup", "0::/job\n");
  root.write("sys/fs/cgroup/job/cpu.max", "max 100000\n");
  EXPECT_EQ(root.quota(), std::nullopt);
}

TEST(CgroupQuota, TheTightestOfAllLevels) {
  const Root root;
  root.write("proc/self/cgroup", "0::/slice/job\n");
  root.write("sys/fs/cgroup/slice/job/cpu.max", "400000 100000\n");
  EXPECT_EQ(root.quota(), 4.0);
  root.write("sys/fs/cgroup/slice/cpu.max", "150000 100000\n");
  EXPECT_EQ(root.quota(), 1.5);
  root.write("sys/fs/cgroup/cpu.max", "50000 100000\n");  // a container sees its own limit at the top
  EXPECT_EQ(root.quota(), 0.5);
}

TEST(CgroupQuota, VersionOne) {
  const Root root;
  root.write("proc/self/cgroup", "3:memory:/job\n4:cpu,cpuacct:/job\n");
  root.write("sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_quota_us", "-1\n");
  root.write("sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(root.quota(), std::nullopt);
  root.write("sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_quota_us", "300000\n");
  EXPECT_EQ(root.quota(), 3.0);
}

UsableCpus eight(std::optional<double> quota = {}) {
  UsableCpus cpus;
  for (unsigned cpu = 0; cpu < 8; ++cpu) CPU_SET(cpu, &cpus.mask);
  cpus.in_mask = 8;
  cpus.quota = quota;
  return cpus;
}

TEST(CpuShare, IsTheRanksPartAndAtLeastOne) {
  EXPECT_EQ(share_cpus(eight(), 2, false).threads, 4);
  EXPECT_EQ(share_cpus(eight(), 3, false).threads, 2);
  EXPECT_EQ(share_cpus(eight(), 20, false).threads, 1);
  EXPECT_EQ(share_cpus(eight(4.7), 2, false).threads, 2);
  EXPECT_EQ(share_cpus(eight(0.5), 1, false).threads, 1);
}

TEST(CpuShare, BindsOnlyWhereEveryRankHasACpu) {
  const auto here = usable_cpus();
  EXPECT_TRUE(share_cpus(here, here.in_mask + 1, true).bind.empty());
  EXPECT_TRUE(share_cpus(here, 1, false).bind.empty());
  EXPECT_TRUE(share_cpus(eight(4.0), 2, true).bind.empty()) << "a quota below the mask";
}

TEST(CpuShare, RanksDoNotOverlap) {
  auto here = usable_cpus();
  here.quota.reset();
  const auto sets = share_cpus(here, here.in_mask, true).bind;
  ASSERT_EQ(sets.size(), static_cast<std::size_t>(here.in_mask));
  cpu_set_t all;
  CPU_ZERO(&all);
  for (const auto& set : sets) {
    EXPECT_EQ(CPU_COUNT(&set), 1);
    CPU_OR(&all, &all, &set);
  }
  EXPECT_TRUE(CPU_EQUAL(&all, &here.mask));
}

}  // namespace

// SPDX-License-Identifier: BSD-3-Clause
#include "slurm.h"

#include <fmt/format.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <filesystem>
#include <fstream>
#include <random>
#include <stdexcept>
#include <thread>

namespace cohort::test {

namespace {

using Clock = std::chrono::steady_clock;
using namespace std::chrono_literals;

std::string short_host_name() {
  std::array<char, 256> name{};
  ::gethostname(name.data(), name.size() - 1);
  const std::string whole = name.data();
  return whole.substr(0, whole.find('.'));
}

/// A port that is free now and outside the range that the kernel assigns to connections.
int unused_port() {
  std::random_device random;
  std::uniform_int_distribution<std::uint16_t> ports(10000, 32000);
  for (;;) {
    const FileDescriptor socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    const auto port = ports(random);
    address.sin_port = htons(port);
    if (::bind(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0) return port;
  }
}

}  // namespace

std::string Slurm::what_is_missing() {
  if (::geteuid() != 0) return "a SLURM of our own needs root";
  for (const auto* const each : {"slurmd", "slurmctld", "munged"}) {
    if (!is_installed(each)) return fmt::format("{} is not installed (slurm-wlm, munge)", each);
  }
  return {};
}

Slurm::Slurm() {
  write_configuration();
  start();
  wait_until_idle();
}

Slurm::~Slurm() {
  while (!daemons_.empty()) daemons_.pop_back();
}

void Slurm::write_configuration() const {
  namespace fs = std::filesystem;
  fs::create_directory(folder_ / "state");
  fs::create_directory(folder_ / "spool");
  std::random_device random;
  std::ofstream key(folder_ / "munge.key");
  for (int i = 0; i < 256; ++i) key << fmt::format("{:08x}", random());
  key.close();
  fs::permissions(folder_ / "munge.key", fs::perms::owner_read);
  const auto host = short_host_name();
  std::ofstream(folder_ / "slurm.conf")
      << fmt::format("ClusterName=test\nSlurmctldHost={}(127.0.0.1)\n", host)
      << "SlurmUser=root\nSlurmdUser=root\nAuthType=auth/munge\nCredType=cred/munge\n"
      << fmt::format("AuthInfo=socket={}\n", folder_ / "munge.socket")
      << "ProctrackType=proctrack/linuxproc\nTaskPlugin=task/none\nSelectType=select/linear\n"
      << "SchedulerType=sched/builtin\nMpiDefault=none\nReturnToService=2\n"
      << fmt::format("SlurmctldPort={}\nSlurmdPort={}\n", unused_port(), unused_port())
      << fmt::format("StateSaveLocation={}\nSlurmdSpoolDir={}\n", folder_ / "state", folder_ / "spool")
      << fmt::format("SlurmctldPidFile={}\nSlurmdPidFile={}\n", folder_ / "slurmctld.pid", folder_ / "slurmd.pid")
      << fmt::format("SlurmctldLogFile={}\nSlurmdLogFile={}\n", folder_ / "slurmctld.log", folder_ / "slurmd.log")
      << fmt::format("NodeName={} NodeAddr=127.0.0.1 CPUs={}\n", host, std::thread::hardware_concurrency())
      << "PartitionName=all Nodes=ALL Default=YES State=UP OverSubscribe=FORCE:8\n";
}

void Slurm::start() {
  const auto run = [&](const Command& command) {
    daemons_.emplace_back(command, ProgramOptions{.variables = {{"SLURM_CONF", folder_ / "slurm.conf"}}});
  };
  const auto socket = folder_ / "munge.socket";
  run({"munged", "--foreground", "--force", "--key-file=" + (folder_ / "munge.key"), "--socket=" + socket,
       "--pid-file=" + (folder_ / "munged.pid"), "--log-file=" + (folder_ / "munged.log"),
       "--seed-file=" + (folder_ / "munged.seed")});
  const auto until = Clock::now() + 20s;
  while (!std::filesystem::exists(socket)) {
    if (Clock::now() > until || daemons_.back().wait(20ms)) throw std::runtime_error("munged did not start: " + logs());
  }
  run({"slurmctld", "-D", "-c", "-f", folder_ / "slurm.conf"});
  run({"slurmd", "-D", "-f", folder_ / "slurm.conf"});
}

void Slurm::wait_until_idle() const {
  const auto until = Clock::now() + 60s;
  for (;;) {
    const auto state =
        finish({"sinfo", "--noheader", "--format=%T"}, {.variables = {{"SLURM_CONF", folder_ / "slurm.conf"}}});
    if (state.output.starts_with("idle")) return;
    if (Clock::now() > until) throw std::runtime_error("SLURM's node is not idle: " + state.output + logs());
    std::this_thread::sleep_for(200ms);  // there is no event to wait for
  }
}

std::string Slurm::logs() const {
  std::string all;
  for (const auto& each : daemons_) all += "\n---\n" + each.output();
  return all;
}

Finished Slurm::run(const Command& flags, const Command& program, Variables variables,
                    std::chrono::seconds at_most) const {
  variables["SLURM_CONF"] = folder_ / "slurm.conf";
  Command command{"srun"};
  command.insert(command.end(), flags.begin(), flags.end());
  command.insert(command.end(), program.begin(), program.end());
  auto result = finish(command, {.variables = variables}, at_most);
  if (result.status != 0) result.output += logs();
  return result;
}

}  // namespace cohort::test

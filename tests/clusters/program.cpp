// SPDX-License-Identifier: BSD-3-Clause
#include "program.h"

#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <stdexcept>
#include <thread>

namespace cohort::test {

namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

/// Debian keeps ip, munged and slurmctld in sbin.
constexpr auto search_path = "PATH=/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin";

std::vector<char*> c_strings(const std::vector<std::string>& texts) {
  std::vector<char*> all;
  for (const auto& text : texts) all.push_back(const_cast<char*>(text.c_str()));
  all.push_back(nullptr);
  return all;
}

FileDescriptor open_network(const std::string& path) {
  if (path.empty()) return FileDescriptor();
  FileDescriptor network(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!network) throw std::runtime_error("no network namespace " + path);
  return network;
}

}  // namespace

Program::Program(const Command& command, const ProgramOptions& options)
    : output_(::memfd_create("output", MFD_CLOEXEC)) {
  std::vector<std::string> environment{search_path, "HOME=/tmp"};
  for (const auto& [name, value] : options.variables) environment.push_back(name + "=" + value);
  const auto network = open_network(options.network);
  const auto arguments = c_strings(command);
  const auto env = c_strings(environment);
  const pid_t parent = ::getpid();
  pid_.number = ::fork();
  if (pid_.number < 0) throw std::runtime_error("fork");
  if (pid_.number == 0) {
    ::setpgid(0, 0);
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (::getppid() != parent) ::_exit(126);
    if (network && ::setns(network.get(), CLONE_NEWNET) != 0) ::_exit(126);
    // Opened for appending, since all writers share the offset of a memfd.
    ::fcntl(output_.get(), F_SETFL, O_APPEND);
    ::dup2(::open("/dev/null", O_RDONLY), STDIN_FILENO);
    ::dup2(output_.get(), STDOUT_FILENO);
    ::dup2(output_.get(), STDERR_FILENO);
    ::execvpe(arguments[0], arguments.data(), env.data());
    ::_exit(127);
  }
  end_ = FileDescriptor(static_cast<int>(::syscall(SYS_pidfd_open, pid_.number, 0)));
}

Program::~Program() {
  if (pid_.number <= 0 || status_) return;
  signal(SIGTERM);
  wait(std::chrono::seconds(3));
  ::kill(-pid_.number, SIGKILL);
  if (!status_) ::waitpid(pid_.number, nullptr, 0);
}

void Program::signal(int number) const {
  ::kill(pid_.number, number);
}

std::string Program::output() const {
  std::string text;
  std::array<char, 65536> chunk{};
  for (ssize_t n = 0; (n = ::pread(output_.get(), chunk.data(), chunk.size(), static_cast<off_t>(text.size()))) > 0;) {
    text.append(chunk.data(), static_cast<std::size_t>(n));
  }
  return text;
}

bool Program::ends_within(milliseconds time) const {
  pollfd item{end_.get(), POLLIN, 0};
  return ::poll(&item, 1, static_cast<int>(std::max(milliseconds(0), time).count())) > 0;
}

bool Program::wait_for_output(const std::string& text, std::size_t times, milliseconds at_most) const {
  const auto until = Clock::now() + at_most;
  while (count_of(output(), text) < times) {
    // A memfd cannot be polled.
    if (Clock::now() > until || ends_within(milliseconds(5))) return count_of(output(), text) >= times;
  }
  return true;
}

std::optional<int> Program::wait(milliseconds at_most) {
  if (status_ || !ends_within(at_most)) return status_;
  int status = 0;
  while (::waitpid(pid_.number, &status, 0) < 0 && errno == EINTR) {
  }
  status_ = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return status_;
}

Finished finish(const Command& command, const ProgramOptions& options, std::chrono::seconds at_most) {
  Program program(command, options);
  const auto status = program.wait(at_most);
  return {.status = status.value_or(-1), .output = program.output() + (status ? "" : "\n(it took too long)")};
}

bool is_installed(const std::string& program) {
  return finish({"sh", "-c", "command -v " + program}).status == 0;
}

std::size_t count_of(const std::string& text, const std::string& word) {
  std::size_t found = 0;
  for (auto at = text.find(word); at != std::string::npos; at = text.find(word, at + 1)) ++found;
  return found;
}

}  // namespace cohort::test

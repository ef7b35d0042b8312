// SPDX-License-Identifier: BSD-3-Clause
#include "launched.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <poll.h>
#include <pty.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <random>
#include <sstream>
#include <stdexcept>
#include <thread>
#include <utility>

namespace cohort::test {

namespace {

using Clock = std::chrono::steady_clock;

/// For whatever a test waits for: generous, since machines are shared; nothing takes nearly as long.
constexpr std::chrono::seconds limit{30};

std::vector<char*> pointers(const Strings& texts) {
  std::vector<char*> result;
  for (const auto& text : texts) result.push_back(const_cast<char*>(text.c_str()));
  result.push_back(nullptr);
  return result;
}

struct Exec {
  Strings arguments;
  Strings variables;
  std::vector<char*> argv;
  std::vector<char*> envp;

  Exec(Strings given, const LaunchOptions& options) : arguments(std::move(given)), variables{} {
    arguments.insert(arguments.begin(), COHORT_TOOL);
    if (!options.variables.contains("PATH")) variables.emplace_back("PATH=/usr/bin:/bin");
    for (const auto& [name, value] : options.variables) variables.push_back(fmt::format("{}={}", name, value));
    argv = pointers(arguments);
    envp = pointers(variables);
  }

  [[noreturn]] void operator()() const {
    for (int number = 1; number < NSIG; ++number) static_cast<void>(::signal(number, SIG_DFL));
    ::close_range(STDERR_FILENO + 1, ~0U, 0);
    ::execve(COHORT_TOOL, argv.data(), envp.data());
    ::_exit(127);
  }
};

struct Pipe {
  FileDescriptor reading;
  FileDescriptor writing;
};

Pipe make_pipe() {
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) throw std::runtime_error("pipe2 failed");
  return {FileDescriptor(ends[0]), FileDescriptor(ends[1])};
}

/// A pipe that has this in it already.
FileDescriptor holding(const std::string& text) {
  auto pipe = make_pipe();
  if (::write(pipe.writing.get(), text.data(), text.size()) < 0) throw std::runtime_error("write failed");
  return std::move(pipe.reading);
}

void append(FileDescriptor& from, std::string& to) {
  std::array<char, 65536> chunk{};
  const auto n = ::read(from.get(), chunk.data(), chunk.size());
  if (n > 0) {
    to.append(chunk.data(), static_cast<std::size_t>(n));
  } else {
    from.reset();  // a terminal says EIO at its end
  }
}

}  // namespace

Launched::Launched(const Strings& arguments, const LaunchOptions& options) {
  if (options.in_terminal) {
    start_in_terminal(arguments, options);
  } else {
    start_with_pipes(arguments, options);
  }
}

void Launched::start_in_terminal(const Strings& arguments, const LaunchOptions& options) {
  const Exec exec(arguments, options);
  int terminal = -1;
  pid_ = ::forkpty(&terminal, nullptr, nullptr, nullptr);
  if (pid_ < 0) throw std::runtime_error("forkpty failed");
  if (pid_ == 0) exec();
  out_ = FileDescriptor(terminal);
}

void Launched::start_with_pipes(const Strings& arguments, const LaunchOptions& options) {
  const Exec exec(arguments, options);
  auto out = make_pipe();
  auto err = make_pipe();
  out_ = std::move(out.reading);
  err_ = std::move(err.reading);
  const auto input =
      options.input.empty() ? FileDescriptor(::open("/dev/null", O_RDONLY | O_CLOEXEC)) : holding(options.input);
  pid_ = ::fork();
  if (pid_ < 0) throw std::runtime_error("fork failed");
  if (pid_ == 0) {
    if (options.in_own_group) ::setpgid(0, 0);
    ::dup2(input.get(), STDIN_FILENO);
    ::dup2(out.writing.get(), STDOUT_FILENO);
    ::dup2(err.writing.get(), STDERR_FILENO);
    exec();
  }
}

Launched::~Launched() {
  if (pid_ < 0) return;
  ::kill(pid_, SIGKILL);
  ::waitpid(pid_, nullptr, 0);
}

void Launched::signal(int number) const {
  ::kill(pid_, number);
}

void Launched::type(const std::string& text) const {
  if (::write(out_.get(), text.data(), text.size()) < 0) throw std::runtime_error("write failed");
}

bool Launched::read_more(Clock::time_point until) {
  std::array<pollfd, 2> ready{{{out_.get(), POLLIN, 0}, {err_.get(), POLLIN, 0}}};
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - Clock::now()).count();
  if (left <= 0 || ::poll(ready.data(), ready.size(), static_cast<int>(left)) <= 0) {
    throw std::runtime_error(fmt::format("it took too long; so far: {}{}", outcome_.out, outcome_.err));
  }
  if (ready[0].revents != 0) append(out_, outcome_.out);
  if (ready[1].revents != 0) append(err_, outcome_.err);
  return out_ || err_;
}

void Launched::wait_for_output(const std::string& text, std::size_t times) {
  const auto until = Clock::now() + limit;
  const auto count = [&] {
    std::size_t found = 0;
    for (auto at = outcome_.out.find(text); at != std::string::npos; at = outcome_.out.find(text, at + 1)) ++found;
    return found;
  };
  while (count() < times) {
    if (!read_more(until)) {
      throw std::runtime_error(fmt::format("it ended without \"{}\": {}{}", text, outcome_.out, outcome_.err));
    }
  }
}

Outcome Launched::finish() {
  const auto until = Clock::now() + limit;
  while (out_ || err_) read_more(until);
  int status = 0;
  ::waitpid(pid_, &status, 0);  // it has closed its output, so it is about to end
  pid_ = -1;
  outcome_.code = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
  return outcome_;
}

Strings run_script(int ranks, const std::string& script, Strings flags) {
  Strings arguments{"run", "-n", std::to_string(ranks)};
  arguments.insert(arguments.end(), flags.begin(), flags.end());
  arguments.insert(arguments.end(), {"sh", "-c", script});
  return arguments;
}

Strings lines_of(const std::string& text, const std::string& prefix) {
  Strings lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) {
    if (line.starts_with(prefix)) lines.push_back(line.substr(prefix.size()));
  }
  std::sort(lines.begin(), lines.end());
  return lines;
}

std::vector<pid_t> numbers_after(const std::string& text, const std::string& word) {
  std::vector<pid_t> numbers;
  for (auto at = text.find(word); at != std::string::npos; at = text.find(word, at + 1)) {
    numbers.push_back(std::stoi(text.substr(at + word.size())));
  }
  return numbers;
}

char process_state(pid_t pid) {
  std::ifstream file(fmt::format("/proc/{}/stat", pid));
  std::string text;
  return std::getline(file, text) ? text.at(text.rfind(')') + 2) : '\0';
}

bool is_running(pid_t pid) {
  const auto state = process_state(pid);
  return state != 'Z' && state != 'X' && state != '\0';
}

namespace {

template <class Condition>
bool is_soon(const Condition& condition) {
  const auto until = Clock::now() + std::chrono::seconds(5);
  while (!condition()) {
    if (Clock::now() > until) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  return true;
}

}  // namespace

bool is_gone_soon(pid_t pid) {
  return is_soon([pid] { return !is_running(pid); });
}

bool is_stopped_soon(pid_t pid) {
  return is_soon([pid] { return process_state(pid) == 'T'; });
}

int free_port() {
  // Below the range that the kernel gives to connections, so that nobody takes it before the test does.
  std::random_device random;
  std::uniform_int_distribution<std::uint16_t> ports(10000, 32000);
  for (int attempt = 0; attempt < 100; ++attempt) {
    const FileDescriptor socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    const auto port = ports(random);
    address.sin_port = htons(port);
    if (::bind(socket.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0) return port;
  }
  throw std::runtime_error("no free port");
}

}  // namespace cohort::test

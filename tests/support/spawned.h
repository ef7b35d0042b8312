// SPDX-License-Identifier: BSD-3-Clause
//
// Starts a program in a new process with a given environment. Unlike a forked child, it ends through exit().
#pragma once

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <map>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace cohort::test {

class Spawned {
 public:
  Spawned(const std::vector<std::string>& command, const std::map<std::string, std::string>& variables) {
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC) != 0) throw std::runtime_error("pipe");
    std::vector<std::string> environment = {"PATH=/usr/local/bin:/usr/bin:/bin"};
    for (const auto& [name, value] : variables) environment.push_back(name + "=" + value);
    auto arguments = pointers(command);
    auto env = pointers(environment);
    pid_ = ::fork();
    if (pid_ == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      ::dup2(ends[1], STDOUT_FILENO);
      ::dup2(ends[1], STDERR_FILENO);
      ::execvpe(arguments[0], arguments.data(), env.data());
      ::_exit(127);
    }
    ::close(ends[1]);
    output_ = ends[0];
  }
  Spawned(Spawned&& other) noexcept : pid_(std::exchange(other.pid_, -1)), output_(std::exchange(other.output_, -1)) {}
  Spawned(const Spawned&) = delete;
  Spawned& operator=(const Spawned&) = delete;
  Spawned& operator=(Spawned&&) = delete;
  ~Spawned() {
    if (pid_ > 0) {
      ::kill(pid_, SIGKILL);
      finish();
    }
  }

  /// A file descriptor that is readable once the program has written something or ended.
  int output() const { return output_; }

  struct Result {
    int status;  ///< the exit status, or 128 + signal
    std::string output;
  };
  Result finish() {
    Result result{0, {}};
    char chunk[4096];
    for (ssize_t n = 0; (n = ::read(output_, chunk, sizeof(chunk))) != 0;) {
      if (n > 0) result.output.append(chunk, static_cast<std::size_t>(n));
      if (n < 0 && errno != EINTR) break;
    }
    ::close(output_);
    int status = 0;
    while (::waitpid(pid_, &status, 0) < 0 && errno == EINTR) {
    }
    pid_ = -1;
    result.status = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    return result;
  }

 private:
  static std::vector<char*> pointers(const std::vector<std::string>& texts) {
    std::vector<char*> all;
    for (const auto& text : texts) all.push_back(const_cast<char*>(text.c_str()));
    all.push_back(nullptr);
    return all;
  }

  pid_t pid_ = -1;
  int output_ = -1;
};

}  // namespace cohort::test

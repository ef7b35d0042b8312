// SPDX-License-Identifier: BSD-3-Clause
#include "plan/draw.h"

#include <cohort/error.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <filesystem>

#include "common/exit_status.h"
#include "common/program.h"
#include "common/throw_errno.h"
#include "common/write_file.h"
#include "core/file_descriptor.h"

namespace cohort::plan {

namespace {

/// Runs dot with the text as its standard input, which is a file in memory: nobody has to feed a pipe meanwhile.
void run_dot(const std::string& program, const std::string& format, const std::string& text, const std::string& path) {
  const FileDescriptor input(::memfd_create("cohort-graph", MFD_CLOEXEC));
  if (!input) tool::throw_errno("cannot make a file in memory");
  for (std::size_t written = 0; written < text.size();) {
    const auto n = ::write(input.get(), text.data() + written, text.size() - written);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) tool::throw_errno("cannot write a file in memory");
    written += static_cast<std::size_t>(n);
  }
  ::lseek(input.get(), 0, SEEK_SET);

  auto kind = "-T" + format;
  auto output = "-o" + path;
  auto name = program;
  std::array<char*, 4> arguments{name.data(), kind.data(), output.data(), nullptr};
  posix_spawn_file_actions_t actions{};
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_adddup2(&actions, input.get(), STDIN_FILENO);
  pid_t pid = -1;
  const int failed = ::posix_spawn(&pid, program.c_str(), &actions, nullptr, arguments.data(), ::environ);
  ::posix_spawn_file_actions_destroy(&actions);
  if (failed != 0) {
    errno = failed;
    tool::throw_errno(fmt::format("cannot run {}", program));
  }
  int status = 0;
  while (::waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  if (status != 0) throw Error(fmt::format("{} could not draw {}; it has said why", program, path));
}

}  // namespace

void draw_graph(const Graph& graph, const GraphPictureOptions& options, const std::string& path) {
  const auto suffix = std::filesystem::path(path).extension().string();
  const auto text = to_dot(graph, options);
  if (suffix == ".dot") return tool::write_file(path, text);
  if (suffix != ".svg" && suffix != ".png" && suffix != ".pdf") {
    throw ValueError(fmt::format("--draw {}: the name must end with .svg, .png, .pdf or .dot", path));
  }
  tool::expect_writable(path);
  std::string program;
  try {
    program = tool::find_program("dot");
  } catch (const tool::ProgramError&) {
    throw Error(fmt::format(
        "--draw {}: Graphviz's dot is not installed (Debian: apt-get install graphviz); --draw with a name that "
        "ends with .dot writes what it reads",
        path));
  }
  run_dot(program, suffix.substr(1), text, path);
}

}  // namespace cohort::plan

// SPDX-License-Identifier: BSD-3-Clause
#include "run/rank_group.h"

#include <cohort/error.h>

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <filesystem>
#include <system_error>

#include "common/host_name.h"
#include "common/pipe.h"
#include "common/pseudo_terminal.h"
#include "common/throw_errno.h"
#include "core/log_format.h"
#include "run/prefix_format.h"

namespace cohort::tool {

namespace {

FileDescriptor open_null() {
  FileDescriptor null(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  if (!null) throw_errno("cannot open /dev/null");
  return null;
}

/// Several hosts may write to one shared folder, so each has a folder of its own in it.
std::filesystem::path log_folder(const RankGroup::Setup& setup, int local_rank, int replacement) {
  const auto& plan = setup.plan;
  auto run = setup.environment.run_id.empty() ? std::string("none") : setup.environment.run_id;
  if (!plan.is_one_host()) run += fmt::format("_node{}", plan.node_rank);
  return std::filesystem::path(plan.log_dir) / run / fmt::format("attempt_{}", setup.environment.attempt) /
         (replacement == 0 ? fmt::to_string(local_rank) : fmt::format("{}_replacement_{}", local_rank, replacement));
}

/// What ranks print may be confidential, and the folder may be one in which others can write: a link there must not
/// make the launcher write elsewhere. Checked before anything in the file is overwritten.
FileDescriptor open_log(const std::filesystem::path& folder, const char* name) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) throw Error(fmt::format("--log-dir: {}: {}", folder.string(), error.message()));
  const auto path = folder / name;
  // O_NONBLOCK: opening a FIFO would wait for its reader.
  FileDescriptor log(
      ::open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY, S_IRUSR | S_IWUSR));
  if (!log && errno == ELOOP) throw Error(fmt::format("--log-dir: {}: it is a symbolic link", path.string()));
  struct stat status {};
  if (!log || ::fstat(log.get(), &status) != 0) throw_errno(fmt::format("--log-dir: {}", path.string()));
  if (!S_ISREG(status.st_mode) || status.st_uid != ::geteuid()) {
    throw Error(fmt::format("--log-dir: {}: it is not a regular file of yours", path.string()));
  }
  if (::fchmod(log.get(), S_IRUSR | S_IWUSR) != 0 || ::ftruncate(log.get(), 0) != 0) {
    throw_errno(fmt::format("--log-dir: {}", path.string()));
  }
  return log;
}

/// What a rank writes to, and where the launcher reads it.
struct Channel {
  FileDescriptor reading;
  FileDescriptor writing;
  bool is_pty = false;
};

Channel make_channel(bool wants_pty) {
  if (wants_pty) {
    if (auto pty = make_pseudo_terminal(STDOUT_FILENO); pty.writing) {
      return {std::move(pty.reading), std::move(pty.writing), true};
    }
  }
  auto pipe = make_pipe();
  return {std::move(pipe.reading), std::move(pipe.writing)};
}

}  // namespace

struct RankGroup::Rank {
  Rank(asio::io_context& loop, RankGroup* group) : owner(group), end_seen(loop) {}

  RankGroup* owner;  // null when the group was destroyed before its last events
  int number = 0;
  std::unique_ptr<Process> process;
  asio::posix::stream_descriptor end_seen;
  std::shared_ptr<OutputTail> tail = std::make_shared<OutputTail>();
  std::vector<std::shared_ptr<RankStream>> streams;
};

RankGroup::RankGroup(const Setup& setup) : on_end_(setup.on_end) {
  for (int local_rank = 0; local_rank < setup.plan.local_size; ++local_rank) start(setup, local_rank, 0);
}

void RankGroup::start(const Setup& setup, int local_rank, int replacement) {
  const auto index = static_cast<std::size_t>(local_rank);
  auto rank = std::make_shared<Rank>(setup.loop, this);
  rank->number = setup.environment.world.first_rank + local_rank;
  const auto format = setup.plan.prefix_format.value_or(
      setup.environment.world.size > 1 ? std::string(default_prefix_format) : std::string());
  const auto prefix = format_prefix(
      format, {.rank = rank->number, .local_rank = local_rank, .node_rank = setup.plan.node_rank, .host = host_name()});

  const auto add_stream = [&](Streams stream, const std::shared_ptr<Console>& console, const char* log_name) {
    auto channel = make_channel(setup.plan.uses_pty && stream == standard_output);
    StreamSinks sinks;
    if (channel.is_pty) {
      // The reader of a pipe is missed with SIGPIPE, that of a terminal is not.
      sinks.on_reader_gone = [writer = std::weak_ptr(rank)] {
        if (const auto alive = writer.lock(); alive && alive->process) alive->process->signal_group(SIGPIPE);
      };
    }
    if ((setup.plan.on_console[index] & stream) != 0) sinks.console = console;
    sinks.is_unchanged = prefix.empty() && setup.environment.world.size == 1;
    sinks.is_alone =
        std::ranges::count_if(setup.plan.on_console, [](unsigned shown) { return shown != no_stream; }) == 1;
    const bool with_colour = console->is_terminal() && setup.plan.env.text("NO_COLOR").empty();
    sinks.prefix = with_colour ? colour_prefix(prefix, rank->number) : prefix;
    if ((setup.plan.logged[index] & stream) != 0) {
      const auto folder = log_folder(setup, local_rank, replacement);
      sinks.log = open_log(folder, log_name);
      sinks.log_path = folder / log_name;
    }
    sinks.tail = rank->tail;
    sinks.stream = stream;
    rank->streams.push_back(std::make_shared<RankStream>(setup.loop, std::move(channel.reading), std::move(sinks)));
    return std::move(channel.writing);
  };
  const auto output = add_stream(standard_output, setup.consoles.output, "stdout.log");
  const auto error = add_stream(standard_error, setup.consoles.error, "stderr.log");
  const auto null = open_null();

  ProcessSpec spec;
  spec.path = setup.path;
  spec.arguments = setup.plan.program;
  spec.environment = setup.environment.of(local_rank, replacement);
  spec.environment.push_back(setup.guard.mark());
  spec.input = rank->number == 0 ? setup.standard_input : null.get();
  spec.output = output.get();
  spec.error = error.get();
  spec.cpus = setup.cpus.bind.empty() ? nullptr : &setup.cpus.bind[index];
  spec.signals = setup.signals;
  spec.open_files = setup.open_files;
  rank->process = std::make_unique<Process>(spec, setup.guard);

  for (const auto& stream : rank->streams) stream->start();
  rank->end_seen.assign(::fcntl(rank->process->pidfd(), F_DUPFD_CLOEXEC, 0));
  rank->end_seen.async_wait(asio::posix::stream_descriptor::wait_read, [rank](asio::error_code failed) {
    if (!failed && rank->owner != nullptr) rank->owner->ended(*rank);
  });
  ranks_.push_back(std::move(rank));
  ++running_;
}

RankGroup::~RankGroup() {
  for (const auto& rank : ranks_) {
    rank->owner = nullptr;
    rank->process->signal_group(SIGKILL);
  }
  try {
    for (const auto& rank : ranks_) {
      for (const auto& stream : rank->streams) {
        stream->drain();
        stream->finish();
      }
    }
  } catch (const std::exception& e) {
    log_warn("the rest of the output of the ranks is lost: {}", e.what());
  }
}

void RankGroup::ended(Rank& rank) {
  --running_;
  for (const auto& stream : rank.streams) stream->drain();
  auto lines = rank.tail->lines();
  // A process that outlives the rank keeps a pipe open, and with it the rank's last line, if that has no line break.
  for (const auto& stream : rank.streams) {
    if (!stream->unfinished().empty()) lines.push_back(stream->unfinished());
  }
  on_end_({rank.number, rank.process->pid(), rank.process->status(), std::move(lines)});
}

void RankGroup::signal_all(int signal) const {
  for (const auto& rank : ranks_) rank->process->signal_group(signal);
}

}  // namespace cohort::tool

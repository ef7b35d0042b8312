// SPDX-License-Identifier: BSD-3-Clause
#include "run/rank_group.h"

#include <cohort/error.h>

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <system_error>

#include "common/host_name.h"
#include "common/pipe.h"
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

FileDescriptor open_log(const std::filesystem::path& folder, const char* name) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) throw Error(fmt::format("--log-dir: {}: {}", folder.string(), error.message()));
  const auto path = folder / name;
  FileDescriptor log(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666));
  if (!log) throw_errno(fmt::format("--log-dir: {}", path.string()));
  return log;
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
    auto pipe = make_pipe();
    StreamSinks sinks;
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
    rank->streams.push_back(std::make_shared<RankStream>(setup.loop, std::move(pipe.reading), std::move(sinks)));
    return std::move(pipe.writing);
  };
  const auto output = add_stream(standard_output, setup.consoles.output, "stdout.log");
  const auto error = add_stream(standard_error, setup.consoles.error, "stderr.log");
  const auto null = open_null();

  ProcessSpec spec;
  spec.path = setup.path;
  spec.arguments = setup.plan.program;
  spec.environment = setup.environment.of(local_rank, replacement);
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
  const auto& lines = rank.tail->lines();
  on_end_({rank.number, rank.process->pid(), rank.process->status(), {lines.begin(), lines.end()}});
}

void RankGroup::signal_all(int signal) const {
  for (const auto& rank : ranks_) rank->process->signal_group(signal);
}

}  // namespace cohort::tool

// SPDX-License-Identifier: BSD-3-Clause
#include "run/flags.h"

#include <cohort/error.h>

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cctype>
#include <iterator>
#include <memory>
#include <string_view>

#include "common/usage.h"

namespace cohort::tool {

namespace {

constexpr auto what_run_does =
    R"(Starts PROGRAM as several processes ("ranks") and waits until they have ended.

Each rank finds its place in RANK, WORLD_SIZE, LOCAL_RANK and torchrun's other variables. Standard input goes to rank
0.

Where there is more than one rank, each line of output is prefixed with "[rank N] ", in colour on a terminal (unless
NO_COLOR is set); see --no-prefix and --prefix-format. The output of a single rank is passed on unchanged. A progress
bar that rewrites its line with a carriage return is updated in place where a terminal shows one rank only; with
several ranks, or without a terminal, its current state is shown as a line of its own, at most once a second for each
rank, and its final state always. On a terminal, lines of several ranks are shown with their colours, but other escape
sequences and control characters in them are made visible, so that no rank can write over another's line.

Standard output of the ranks is a pseudo-terminal, as with mpirun: what they print appears at once. Where the launcher's
own output is not a terminal, they get TERM=dumb and NO_COLOR=1, so that they do not colour a file. --no-pty gives them
a pipe.

When a rank fails, the first one to fail is named with its last lines, the others are terminated, and its exit code
(128 + the signal's number) is returned. The first Ctrl-C or SIGTERM is passed on and gives the ranks 10 seconds to
end, the second one kills them. Ctrl-Z stops the ranks and the launcher, and fg or SIGCONT continues them; timeouts
keep running meanwhile, and on several hosts the others give up a host that was stopped for 10 seconds.

With --keep-going a rank that fails is named, and the others go on; so do those of other hosts when a host other than
host 0 is lost. With --max-restarts a replacement is started in its place, with the same variables and
COHORT_REPLACEMENT, which counts the processes that have had this rank before; if the ranks of one host were still
making their first group, all of them are restarted instead. The exit code is 0 if every rank, or its
last replacement, has ended with success; 75 if some were lost and others ended with success; and that of the first
one to fail if none did.)";

constexpr auto footer = R"(Examples:
  cohort run -n 4 ./train --epochs 3                    four ranks on this host; what follows ./train belongs to it
  cohort run -n 4 --no-prefix ./evaluate | jq .loss     lines of JSON stay lines of JSON
  cohort run --nnodes 2 --node-rank 0 -n 8 --rdzv-endpoint host0:29500 ./train
                                                        the same with --node-rank 1 on the second host; both need
                                                        COHORT_SECRET_FILE (see: cohort secret)
  cohort run -n 4 --keep-going --max-restarts 2 ./train survives two deaths, if ./train calls shrink() and grow()

Flags may be written with _ instead of -, and take their defaults from torchrun's variables (PET_NNODES for --nnodes,
...). In a Kubernetes pod without LOCAL_RANK, RANK and WORLD_SIZE are the node's rank and the number of nodes, and
MASTER_ADDR and MASTER_PORT are the endpoint.)";

class Help : public CLI::Formatter {
  std::string make_usage(const CLI::App*, std::string) const override {
    return "Usage: cohort run [FLAGS] PROGRAM [ARGUMENTS...]\n";
  }
};

/// What torchrun accepts and has no effect here.
struct Ignored {
  std::string rdzv_backend;
  double monitor_interval = 0;
  bool no_python = false;
};

/// The flags under one heading of --help.
class FlagGroup {
 public:
  FlagGroup(CLI::App& app, const char* heading) : app_(app), heading_(heading) {}

  template <class T>
  CLI::Option* add(const char* names, T& value, const char* type, const char* description) {
    return app_.add_option(names, value, description)->type_name(type)->group(heading_);
  }
  CLI::Option* add(const char* name, bool& value, const char* description) {
    return app_.add_flag(name, value, description)->group(heading_);
  }

 private:
  CLI::App& app_;
  const char* heading_;
};

void add_options(CLI::App& app, RunFlags& flags, Ignored& ignored) {
  FlagGroup ranks(app, "Ranks");
  ranks.add("-n,--nproc-per-node", flags.nproc_per_node, "N",
            "ranks on this host: a number, cpu, gpu, or auto (gpu if there are any); -np is the same; default 1");
  ranks
      .add("--max-restarts", flags.max_restarts, "N",
           "restart all ranks this often after a failure; with --keep-going: start this many replacements on this host "
           "for ranks that were lost; default 0")
      ->check(CLI::NonNegativeNumber);
  ranks.add("--keep-going", flags.keep_going,
            "when a rank fails, let the others go on: for programs that shrink and grow their groups");
  ranks
      .add("--bind", flags.bind, "HOW",
           "bind each rank to CPUs of its own where there are enough: auto (default) or none")
      ->check(CLI::IsMember({"auto", "none"}));
  ranks
      .add("--grace-period", flags.grace_period, "SECONDS",
           "time between SIGTERM and SIGKILL for the other ranks when one has failed; default 0.5")
      ->check(CLI::NonNegativeNumber);
  ranks.add("--role", flags.role, "NAME", "ROLE_NAME of the ranks");

  FlagGroup hosts(app, "Several hosts");
  hosts.add("--nnodes", flags.nnodes, "N", "number of hosts; default 1");
  hosts.add("--node-rank", flags.node_rank, "N", "number of this host, from 0; host 0 keeps the store");
  hosts.add("--rdzv-endpoint", flags.rdzv_endpoint, "HOST[:PORT]",
            "where the store listens on host 0; the default port is 29500");
  hosts.add("--master-addr", flags.master_addr, "HOST", "the host of --rdzv-endpoint");
  hosts.add("--master-port", flags.master_port, "PORT", "the port of --rdzv-endpoint; on one host: MASTER_PORT")
      ->check(CLI::Range(0, 65535));
  hosts.add("--rdzv-id", flags.rdzv_id, "NAME", "name of the job, the same on all hosts");
  hosts.add("--rdzv-conf", flags.rdzv_conf, "KEY=VALUE,...",
            "join_timeout=SECONDS for all hosts to join, default 600; other keys have no effect");
  hosts.add("--local-addr", flags.local_addr, "ADDRESS", "on host 0: the address to listen on, if not the endpoint's");
  hosts.add("--standalone", flags.standalone, "run on one host, whatever the environment says");

  FlagGroup output(app, "Output");
  output.add("--log-dir", flags.log_dir, "DIR",
             "keep output in DIR/<run id>/attempt_<k>/<local rank>/{stdout,stderr}.log; all of it unless -r or -t is "
             "given");
  output.add("-r,--redirects", flags.redirects, "STREAMS",
             "streams that go only to the log: 0 none, 1 stdout, 2 stderr, 3 both; or per local rank: 0:1,1:3");
  output.add("-t,--tee", flags.tee, "STREAMS", "streams that go to the log and to the console; values as for -r");
  output.add("--local-ranks-filter", flags.local_ranks_filter, "RANKS",
             "show only the output of these local ranks: 0,2");
  auto* const no_prefix = output.add("--no-prefix", flags.no_prefix,
                                     "show lines as the ranks wrote them; the lines of several ranks still stay whole");
  output
      .add("--prefix-format", flags.prefix_format, "FORMAT",
           "what precedes each line, even of a single rank; {rank}, {local_rank}, {node_rank} and {host} are replaced")
      ->excludes(no_prefix);
  output
      .add("--pty", flags.pty,
           "give the ranks a pseudo-terminal as standard output, so that each line appears when it is written; default")
      ->excludes(output.add("--no-pty", flags.no_pty,
                            "give them a pipe: programs then buffer their output, and see that it is no terminal"));

  FlagGroup compatible(app, "Accepted for compatibility with torchrun, without effect");
  compatible.add("--rdzv-backend", ignored.rdzv_backend, "NAME", "c10d or static")
      ->check(CLI::IsMember({"c10d", "static"}));
  compatible.add("--monitor-interval", ignored.monitor_interval, "SECONDS", "the end of a rank is noticed at once");
  compatible.add("--no-python", ignored.no_python, "programs are executed directly");

  for (auto* const option : app.get_options()) option->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
}

bool takes_value(const CLI::Option& option) {
  return option.get_items_expected_max() > 0 && option.get_type_size() > 0;
}

/// `--node_rank=1` → `--node-rank=1`, `-np` → `-n`.
std::string canonical(std::string argument) {
  if (argument == "-np") return "-n";
  if (argument.starts_with("--")) {
    const auto end = argument.begin() + static_cast<std::ptrdiff_t>(std::min(argument.find('='), argument.size()));
    std::replace(argument.begin() + 2, end, '_', '-');
  }
  return argument;
}

struct CommandLine {
  std::vector<std::string> flags;
  std::vector<std::string> program;
};

/// The first argument that is neither a flag nor a flag's value is the program.
CommandLine split_at_program(const CLI::App& app, const std::vector<std::string>& arguments) {
  CommandLine line;
  auto it = arguments.begin();
  for (; it != arguments.end() && it->size() > 1 && it->front() == '-'; ++it) {
    if (*it == "--") {
      ++it;
      break;
    }
    const auto argument = canonical(*it);
    const bool is_long = argument.starts_with("--");
    const auto name = is_long ? argument.substr(0, argument.find('=')) : argument.substr(0, 2);
    const auto* const option = app.get_option_no_throw(name);
    if (option == nullptr) {
      throw ValueError(
          fmt::format("unknown flag {}{} (flags of the program follow its name)", *it, flag_suggestion(app, name)));
    }
    line.flags.push_back(argument);
    if (takes_value(*option) && argument.size() == name.size()) {
      if (++it == arguments.end()) throw ValueError(fmt::format("{} needs a value", *std::prev(it)));
      line.flags.back() += (is_long ? "=" : "") + *it;  // as one, so that a value may begin with a dash
    }
  }
  line.program.assign(it, arguments.end());
  return line;
}

/// PET_NODE_RANK=1 → --node-rank=1, for the flags there are.
std::vector<std::string> flags_from(const Env& env, const CLI::App& app) {
  constexpr std::string_view prefix = "PET_";
  std::vector<std::string> flags;
  for (const auto& variable : Env::known()) {
    const auto value = env.text(variable.name);
    if (!variable.name.starts_with(prefix) || value.empty()) continue;
    std::string name(variable.name.substr(prefix.size()));
    std::transform(name.begin(), name.end(), name.begin(),
                   [](char c) { return c == '_' ? '-' : static_cast<char>(std::tolower(c)); });
    const auto* const option = app.get_option("--" + name);
    if (takes_value(*option)) {
      flags.push_back(fmt::format("--{}={}", name, value));
    } else if (value != "0") {
      flags.push_back("--" + name);
    }
  }
  return flags;
}

}  // namespace

ParsedFlags parse_run_flags(const std::vector<std::string>& arguments, const Env& env) {
  ParsedFlags parsed;
  Ignored ignored;
  CLI::App app(what_run_does, "cohort run");
  app.formatter(std::make_shared<Help>());
  keep_lines_of_help(app);
  app.footer(footer);
  add_options(app, parsed.flags, ignored);
  auto line = split_at_program(app, arguments);
  auto flags = flags_from(env, app);
  flags.insert(flags.end(), line.flags.begin(), line.flags.end());
  std::reverse(flags.begin(), flags.end());  // CLI11 takes them off the end
  try {
    app.parse(std::move(flags));
  } catch (const CLI::ParseError& e) {
    parsed.exit_code = report(app, e);
    return parsed;
  }
  parsed.flags.program = std::move(line.program);
  if (parsed.flags.program.empty()) throw ValueError("no program given; try: cohort run -n 4 ./program");
  return parsed;
}

}  // namespace cohort::tool

// SPDX-License-Identifier: BSD-3-Clause
#include <fmt/format.h>

#include <CLI/Error.hpp>
#include <memory>

#include "commands.h"
#include "doctor/report.h"

namespace cohort::tool {

void add_doctor_command(CLI::App& app) {
  auto* const command = app.add_subcommand("doctor", "Report what this build and this host offer, and what is wrong");
  const auto json = std::make_shared<bool>(false);
  command->add_flag("--json", *json, "print JSON instead of text");
  command->footer(
      "Returns 1 if there is a problem of severity \"error\", otherwise 0.\n"
      "\n"
      "Keys of the JSON (sizes in bytes; null: unknown or unlimited; keys may be added, not renamed):\n"
      "  versions    cohort, compiler, openssl, hwloc, libc, kernel, system\n"
      "  backends[]  name, built_in, hint\n"
      "  auto        one_host, several_hosts, cuda: what backend auto would choose, or \"none: \" and why\n"
      "  cpu         usable, online, in_affinity_mask, cgroup_quota, cores, sockets, numa_nodes\n"
      "  memory      total, available, cgroup_limit, locked_limit, dev_shm_size, dev_shm_free, huge_page_size,\n"
      "              huge_pages, huge_pages_free, transparent_huge_pages\n"
      "  limits      open_files, open_files_hard, ptrace_scope\n"
      "  host        name, resolves\n"
      "  interfaces[] name, up, loopback, addresses[]\n"
      "  gpu         gpus[] (pci, model), device_files, driver, libcuda\n"
      "  launch      error, variables, found (launcher, rank, size, local_rank, local_size, node, job,\n"
      "              restart_count, master_addr, master_port, found_in: which variable each came from)\n"
      "  problems[]  severity (note, warning, error), id, what, fix");
  command->callback([json] {
    const auto report = examine();
    fmt::print("{}", *json ? render_json(report) : render_text(report));
    if (report.has_errors()) throw CLI::RuntimeError(1);
  });
}

}  // namespace cohort::tool

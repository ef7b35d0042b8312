// SPDX-License-Identifier: BSD-3-Clause
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <array>
#include <iterator>
#include <nlohmann/json.hpp>

#include "doctor/report.h"

namespace cohort::tool {

namespace {

using Json = nlohmann::ordered_json;

std::string_view name_of(Severity severity) {
  static constexpr std::array<std::string_view, 3> names = {"note", "warning", "error"};
  return names.at(static_cast<std::size_t>(severity));
}

std::string size_text(const std::optional<std::uint64_t>& bytes, std::string_view otherwise = "unknown") {
  if (!bytes) return std::string(otherwise);
  static constexpr std::array<std::string_view, 5> units = {"bytes", "KiB", "MiB", "GiB", "TiB"};
  auto value = static_cast<double>(*bytes);
  std::size_t unit = 0;
  while (value >= 1024 && unit + 1 < units.size()) {
    value /= 1024;
    ++unit;
  }
  return unit == 0 ? fmt::format("{} bytes", *bytes) : fmt::format("{:.1f} {}", value, units.at(unit));
}

class Page {
 public:
  void heading(std::string_view title) { text_ += fmt::format("{}{}\n", text_.empty() ? "" : "\n", title); }
  void line(std::string_view name, std::string_view value) { text_ += fmt::format("  {:<14} {}\n", name, value); }
  void text(std::string_view line) { text_ += fmt::format("  {}\n", line); }
  std::string take() { return std::move(text_); }

 private:
  std::string text_;
};

void render_versions(Page& page, const Report& report) {
  const auto& v = report.versions;
  page.heading(fmt::format("cohort {}", v.cohort));
  page.line("compiler", v.compiler);
  page.line("openssl", v.openssl);
  page.line("hwloc", v.hwloc);
  page.line("libc", v.libc);
  page.line("kernel", v.kernel);
  page.line("system", v.system);
  page.heading("Backends");
  for (const auto& backend : report.backends) page.line(backend.name, backend.built_in ? "built in" : backend.hint);
  page.heading("What \"auto\" chooses");
  page.line("one host", report.choice.one_host);
  page.line("several hosts", report.choice.several_hosts);
  page.line("cuda devices", report.choice.cuda);
}

void render_host(Page& page, const Report& report) {
  const auto& cpu = report.cpu;
  page.heading("CPUs");
  page.line("usable",
            fmt::format("{} (online {}, affinity {}, cgroup {})", cpu.usable, cpu.online, cpu.in_affinity_mask,
                        cpu.cgroup_quota ? fmt::format("{:.2g}", *cpu.cgroup_quota) : "no limit"));
  page.line("layout", fmt::format("{} sockets, {} cores, {} NUMA nodes", cpu.sockets, cpu.cores, cpu.numa_nodes));

  const auto& memory = report.memory;
  page.heading("Memory");
  page.line("total", size_text(memory.total));
  page.line("available", size_text(memory.available));
  page.line("cgroup limit", size_text(memory.cgroup_limit, "none"));
  page.line("locked limit", size_text(memory.locked_limit, "none"));
  page.line("/dev/shm", memory.dev_shm_size
                            ? fmt::format("{}, {} free", size_text(memory.dev_shm_size), size_text(memory.dev_shm_free))
                            : std::string("missing"));
  page.line("huge pages",
            fmt::format("{} of {}, {} free; transparent: {}", memory.huge_pages, size_text(memory.huge_page_size),
                        memory.huge_pages_free,
                        memory.transparent_huge_pages.empty() ? "unknown" : memory.transparent_huge_pages));

  const auto& limits = report.limits;
  const auto files = [](const std::optional<std::uint64_t>& n) {
    return n ? fmt::to_string(*n) : std::string("no limit");
  };
  page.heading("Limits");
  page.line("open files", fmt::format("{} (hard {})", files(limits.open_files), files(limits.open_files_hard)));
  page.line("ptrace scope", limits.ptrace_scope ? fmt::to_string(*limits.ptrace_scope) : "not restricted by yama");
}

void render_devices(Page& page, const Report& report) {
  page.heading("Network");
  page.line("host name", fmt::format("{}{}", report.host.name, report.host.resolves ? "" : " (does not resolve)"));
  for (const auto& interface : report.interfaces) {
    page.line(interface.name, fmt::format("{}{}", interface.addresses.empty() ? "no address" : "",
                                          fmt::join(interface.addresses, " ")) +
                                  (interface.up ? "" : " (down)"));
  }
  page.heading("GPUs");
  if (report.gpu.gpus.empty() && report.gpu.device_files == 0) page.text("none");
  for (const auto& gpu : report.gpu.gpus) page.line(gpu.pci, gpu.model);
  if (!report.gpu.driver.empty()) page.line("driver", report.gpu.driver);
  page.line("libcuda.so.1", report.gpu.libcuda ? "found" : "not found");
}

void render_launch(Page& page, const Report& report) {
  page.heading("Launch environment");
  const auto& launch = report.launch;
  if (!launch.error.empty()) {
    page.text(fmt::format("broken: {}", launch.error));
  } else if (!launch.found) {
    page.text("none: not started by a launcher");
  } else {
    const auto& found = *launch.found;
    const auto show = [&](std::string_view field, const std::string& value) {
      const auto it = found.found_in.find(field);
      page.line(field, it == found.found_in.end() ? value : fmt::format("{} (from {})", value, it->second));
    };
    page.line("launcher", to_string(found.launcher));
    show("rank", fmt::to_string(found.rank));
    show("size", fmt::to_string(found.size));
    if (found.local_rank) show("local_rank", fmt::to_string(*found.local_rank));
    if (found.local_size) show("local_size", fmt::to_string(*found.local_size));
    if (found.node) show("node", fmt::to_string(*found.node));
    if (!found.job.empty()) show("job", found.job);
    if (!found.master_addr.empty()) show("master_addr", found.master_addr);
    if (found.master_port) show("master_port", fmt::to_string(*found.master_port));
  }
  for (const auto& [name, value] : launch.variables) page.text(fmt::format("{}={}", name, value));
}

void render_problems(Page& page, const Report& report) {
  page.heading("Problems");
  if (report.problems.empty()) page.text("none found");
  for (const auto& problem : report.problems) {
    page.text(fmt::format("{}: {}", name_of(problem.severity), problem.what));
    page.text(fmt::format("  fix: {}", problem.fix));
  }
}

template <class T>
Json or_null(const std::optional<T>& value) {
  return value ? Json(*value) : Json(nullptr);
}

Json launch_json(const LaunchReport& launch) {
  Json json = {{"error", launch.error.empty() ? Json(nullptr) : Json(launch.error)},
               {"found", nullptr},
               {"variables", Json::object()}};
  for (const auto& [name, value] : launch.variables) json["variables"][name] = value;
  if (!launch.found) return json;
  const auto& found = *launch.found;
  json["found"] = {{"launcher", to_string(found.launcher)},
                   {"rank", found.rank},
                   {"size", found.size},
                   {"local_rank", or_null(found.local_rank)},
                   {"local_size", or_null(found.local_size)},
                   {"node", or_null(found.node)},
                   {"job", found.job},
                   {"restart_count", found.restart_count},
                   {"master_addr", found.master_addr},
                   {"master_port", or_null(found.master_port)},
                   {"found_in", found.found_in}};
  return json;
}

}  // namespace

std::string render_text(const Report& report) {
  Page page;
  render_versions(page, report);
  render_host(page, report);
  render_devices(page, report);
  render_launch(page, report);
  render_problems(page, report);
  return page.take();
}

std::string render_json(const Report& report) {
  const auto& v = report.versions;
  const auto& cpu = report.cpu;
  const auto& memory = report.memory;
  Json json = {
      {"versions",
       {{"cohort", v.cohort},
        {"compiler", v.compiler},
        {"openssl", v.openssl},
        {"hwloc", v.hwloc},
        {"libc", v.libc},
        {"kernel", v.kernel},
        {"system", v.system}}},
      {"backends", Json::array()},
      {"auto",
       {{"one_host", report.choice.one_host},
        {"several_hosts", report.choice.several_hosts},
        {"cuda", report.choice.cuda}}},
      {"cpu",
       {{"usable", cpu.usable},
        {"online", cpu.online},
        {"in_affinity_mask", cpu.in_affinity_mask},
        {"cgroup_quota", or_null(cpu.cgroup_quota)},
        {"cores", cpu.cores},
        {"sockets", cpu.sockets},
        {"numa_nodes", cpu.numa_nodes}}},
      {"memory",
       {{"total", or_null(memory.total)},
        {"available", or_null(memory.available)},
        {"cgroup_limit", or_null(memory.cgroup_limit)},
        {"locked_limit", or_null(memory.locked_limit)},
        {"dev_shm_size", or_null(memory.dev_shm_size)},
        {"dev_shm_free", or_null(memory.dev_shm_free)},
        {"huge_page_size", or_null(memory.huge_page_size)},
        {"huge_pages", memory.huge_pages},
        {"huge_pages_free", memory.huge_pages_free},
        {"transparent_huge_pages", memory.transparent_huge_pages}}},
      {"limits",
       {{"open_files", or_null(report.limits.open_files)},
        {"open_files_hard", or_null(report.limits.open_files_hard)},
        {"ptrace_scope", or_null(report.limits.ptrace_scope)}}},
      {"host", {{"name", report.host.name}, {"resolves", report.host.resolves}}},
      {"interfaces", Json::array()},
      {"gpu",
       {{"gpus", Json::array()},
        {"device_files", report.gpu.device_files},
        {"driver", report.gpu.driver},
        {"libcuda", report.gpu.libcuda}}},
      {"launch", launch_json(report.launch)},
      {"problems", Json::array()},
  };
  for (const auto& backend : report.backends) {
    json["backends"].push_back({{"name", backend.name}, {"built_in", backend.built_in}, {"hint", backend.hint}});
  }
  for (const auto& interface : report.interfaces) {
    json["interfaces"].push_back({{"name", interface.name},
                                  {"up", interface.up},
                                  {"loopback", interface.loopback},
                                  {"addresses", interface.addresses}});
  }
  for (const auto& gpu : report.gpu.gpus) json["gpu"]["gpus"].push_back({{"pci", gpu.pci}, {"model", gpu.model}});
  for (const auto& problem : report.problems) {
    json["problems"].push_back(
        {{"severity", name_of(problem.severity)}, {"id", problem.id}, {"what", problem.what}, {"fix", problem.fix}});
  }
  // What comes from the environment need not be UTF-8.
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace cohort::tool

// SPDX-License-Identifier: BSD-3-Clause
#include "backends/nccl/engine_interface.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/module.h"

namespace cohort::nccl {

namespace {

constexpr std::string_view how_to_install =
    "install NCCL 2.18 or newer (Debian and Ubuntu: libnccl2, from NVIDIA's repository; pip: nvidia-nccl-cu12) and let "
    "the loader find libnccl.so.2 (LD_LIBRARY_PATH)";

template <class Function>
void fill(const Module& module, Function& place, const char* symbol, std::string& missing) {
  place = module.find<Function>(symbol);
  if (place == nullptr && missing.empty()) missing = fmt::format("NCCL has no {}: {}", symbol, how_to_install);
}

Engine load() {
  Engine engine;
  const auto& driver = cuda::system_driver();
  if (!driver.missing.empty()) {
    engine.missing = driver.missing;
    return engine;
  }
  engine.driver = driver.driver;
  static const std::array<std::string, 2> names = {"libnccl.so.2", "libnccl.so"};
  const auto module = Module::of_system(names);
  auto& why = engine.missing;
  if (!module.is_loaded()) {
    why = fmt::format("NCCL was not found ({}): {}", module.why_not(), how_to_install);
    return engine;
  }
  auto& c = engine.calls;
  fill(module, c.get_version, "ncclGetVersion", why);
  if (!why.empty()) return engine;
  if (why = check_version(c); !why.empty()) return engine;
  fill(module, c.get_error_string, "ncclGetErrorString", why);
  fill(module, c.get_last_error, "ncclGetLastError", why);
  fill(module, c.get_unique_id, "ncclGetUniqueId", why);
  fill(module, c.comm_init, "ncclCommInitRankConfig", why);
  fill(module, c.comm_finalize, "ncclCommFinalize", why);
  fill(module, c.comm_destroy, "ncclCommDestroy", why);
  fill(module, c.comm_abort, "ncclCommAbort", why);
  fill(module, c.comm_split, "ncclCommSplit", why);
  fill(module, c.comm_get_async_error, "ncclCommGetAsyncError", why);
  fill(module, c.group_start, "ncclGroupStart", why);
  fill(module, c.group_end, "ncclGroupEnd", why);
  fill(module, c.all_reduce, "ncclAllReduce", why);
  fill(module, c.reduce, "ncclReduce", why);
  fill(module, c.broadcast, "ncclBroadcast", why);
  fill(module, c.all_gather, "ncclAllGather", why);
  fill(module, c.reduce_scatter, "ncclReduceScatter", why);
  fill(module, c.send, "ncclSend", why);
  fill(module, c.recv, "ncclRecv", why);
  fill(module, c.create_premul_sum, "ncclRedOpCreatePreMulSum", why);
  fill(module, c.destroy_op, "ncclRedOpDestroy", why);
  c.mem_alloc = module.find<decltype(c.mem_alloc)>("ncclMemAlloc");
  c.mem_free = module.find<decltype(c.mem_free)>("ncclMemFree");
  c.comm_shrink = module.find<decltype(c.comm_shrink)>("ncclCommShrink");
  return engine;
}

}  // namespace

const Engine& system_engine() {
  static const Engine engine = load();
  return engine;
}

std::string check_version(Calls& calls) {
  if (const auto result = calls.get_version(&calls.version); result != Result::success) {
    return fmt::format("ncclGetVersion failed with {}", static_cast<int>(result));
  }
  if (calls.version >= oldest_version) return {};
  return fmt::format("NCCL {} was found, which is too old: {}", version_text(calls.version), how_to_install);
}

std::string version_text(int version) {
  return fmt::format("{}.{}.{}", version / 10000, version / 100 % 100, version % 100);
}

void fit(Config& config, int library_version) {
  const bool is_long = library_version >= version_with_shrink;
  config.size = is_long ? sizeof(Config) : offsetof(Config, comm_name);
  config.version = static_cast<unsigned>(std::min(library_version, version_with_shrink));
}

std::string describe(const Calls& calls, Result result, Comm* comm) {
  const char* const name = calls.get_error_string(result);
  const char* const more = calls.get_last_error(comm);
  const std::string text = name == nullptr ? fmt::format("NCCL error {}", static_cast<int>(result)) : name;
  return more == nullptr || *more == '\0' ? text : fmt::format("{}: {}", text, more);
}

}  // namespace cohort::nccl

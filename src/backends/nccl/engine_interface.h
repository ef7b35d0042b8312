// SPDX-License-Identifier: BSD-3-Clause
//
// The functions of NCCL that Cohort calls, as a table. It is filled from libnccl.so.2 at run time (a copy that the
// process has loaded already is preferred, since two copies in one process do not mix), and from a test double in
// tests. The declarations are Cohort's own; types, numbers and layouts are those of NCCL's public header, nccl.h
// (github.com/NVIDIA/nccl, src/nccl.h.in of v2.18.1 to v2.28.3), whose ABI only ever grows.
#pragma once

#include <array>
#include <climits>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "backends/cuda/driver.h"

namespace cohort::nccl {

/// ncclResult_t.
enum class Result : int {
  success = 0,
  unhandled_cuda_error = 1,
  system_error = 2,
  internal_error = 3,
  invalid_argument = 4,
  invalid_usage = 5,
  remote_error = 6,
  in_progress = 7,
};

/// ncclDataType_t.
enum class DataType : int {
  int8 = 0,
  uint8 = 1,
  int32 = 2,
  uint32 = 3,
  int64 = 4,
  uint64 = 5,
  float16 = 6,
  float32 = 7,
  float64 = 8,
  bfloat16 = 9,
};

/// ncclRedOp_t; ncclRedOpCreatePreMulSum creates further ones.
enum class RedOp : int { sum = 0, product = 1, max = 2, min = 3, avg = 4 };

inline constexpr int scalar_host_immediate = 1;  ///< ncclScalarHostImmediate: read before the call returns
inline constexpr int split_no_color = -1;        ///< NCCL_SPLIT_NOCOLOR
inline constexpr int shrink_abort = 1;           ///< NCCL_SHRINK_ABORT: end the parent's operations first
inline constexpr int undefined = INT_MIN;        ///< NCCL_CONFIG_UNDEF_INT

/// ncclUniqueId, passed by value.
struct UniqueId {
  std::array<char, 128> bytes{};
};

struct Comm;  ///< ncclComm_t is a pointer to one

/// ncclConfig_t. It grows at its end from version to version; the first three members tell how much of it there is, and
/// the library uses its defaults for the rest: it copies `size` bytes and checks `version` for members that lie in what
/// used to be padding (parseCommConfig in NCCL's src/init.cc).
///
///   2.18 to 2.24    up to splitShare, 48 bytes with padding
///   2.25, 2.26      trafficClass, where the padding was; still 48 bytes
///   2.27 and later  up to nvlsCTAs, 72 bytes; what 2.28 and later versions add is not used here
struct Config {
  std::size_t size = 0;
  unsigned magic = 0xcafebeef;
  unsigned version = 0;
  int blocking = 0;  ///< never blocking: initialisation, operations and abort have deadlines
  int cga_cluster_size = undefined;
  int min_ctas = undefined;
  int max_ctas = undefined;
  const char* net_name = nullptr;
  int split_share = undefined;
  int traffic_class = undefined;
  const char* comm_name = nullptr;
  int collnet_enable = undefined;
  int cta_policy = undefined;
  int shrink_share = undefined;
  int nvls_ctas = undefined;
};
static_assert(sizeof(Config) == 72 && offsetof(Config, comm_name) == 48);

inline constexpr int version_of(int major, int minor, int patch = 0) {
  return major * 10000 + minor * 100 + patch;
}
inline constexpr int oldest_version = version_of(2, 18);
inline constexpr int version_with_traffic_class = version_of(2, 25);
inline constexpr int version_with_shrink = version_of(2, 27);

struct Calls {
  Result (*get_version)(int* version) = nullptr;
  const char* (*get_error_string)(Result result) = nullptr;
  const char* (*get_last_error)(Comm* comm) = nullptr;
  Result (*get_unique_id)(UniqueId* id) = nullptr;
  Result (*comm_init)(Comm** comm, int size, UniqueId id, int rank,
                      Config* config) = nullptr;  // ncclCommInitRankConfig
  Result (*comm_finalize)(Comm* comm) = nullptr;
  Result (*comm_destroy)(Comm* comm) = nullptr;
  Result (*comm_abort)(Comm* comm) = nullptr;
  Result (*comm_split)(Comm* comm, int color, int key, Comm** made, Config* config) = nullptr;
  Result (*comm_get_async_error)(Comm* comm, Result* error) = nullptr;
  Result (*group_start)() = nullptr;
  Result (*group_end)() = nullptr;
  Result (*all_reduce)(const void* in, void* out, std::size_t count, DataType type, RedOp op, Comm* comm,
                       void* stream) = nullptr;
  Result (*reduce)(const void* in, void* out, std::size_t count, DataType type, RedOp op, int root, Comm* comm,
                   void* stream) = nullptr;
  Result (*broadcast)(const void* in, void* out, std::size_t count, DataType type, int root, Comm* comm,
                      void* stream) = nullptr;
  Result (*all_gather)(const void* in, void* out, std::size_t count, DataType type, Comm* comm, void* stream) = nullptr;
  Result (*reduce_scatter)(const void* in, void* out, std::size_t count, DataType type, RedOp op, Comm* comm,
                           void* stream) = nullptr;
  Result (*send)(const void* data, std::size_t count, DataType type, int peer, Comm* comm, void* stream) = nullptr;
  Result (*recv)(void* data, std::size_t count, DataType type, int peer, Comm* comm, void* stream) = nullptr;
  Result (*create_premul_sum)(RedOp* op, void* scalar, DataType type, int residence, Comm* comm) = nullptr;
  Result (*destroy_op)(RedOp op, Comm* comm) = nullptr;
  // Not present in every supported version.
  Result (*mem_alloc)(void** data, std::size_t bytes) = nullptr;  // 2.19
  Result (*mem_free)(void* data) = nullptr;
  Result (*comm_shrink)(Comm* comm, int* excluded, int count, Comm** made, Config* config,
                        int flags) = nullptr;  // 2.27

  int version = 0;  ///< what get_version returned
};

/// The libraries that a group of this backend runs on.
struct Engine {
  cuda::Driver driver{};
  Calls calls{};
  std::string missing{};  ///< what is missing and how to get it; empty if the engine can be used
};

/// The engine of this process, loaded once.
const Engine& system_engine();

/// Sets `version`; returns what is wrong with it, or an empty text.
std::string check_version(Calls& calls);

/// "2.27.3"
std::string version_text(int version);
/// Sets the size and version of a Config to what this library supports.
void fit(Config& config, int library_version);
/// "unhandled system error: <NCCL's last error text>"
std::string describe(const Calls& calls, Result result, Comm* comm);

}  // namespace cohort::nccl

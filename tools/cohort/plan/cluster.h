// SPDX-License-Identifier: BSD-3-Clause
//
// A cluster as plans see it: hosts with the same number of ranks, and two kinds of links, inside a host and between
// hosts. On each a message of n bytes takes alpha + n * beta (R. W. Hockney, "The communication challenge for MPP:
// Intel Paragon and Meiko CS-2", Parallel Computing 20(3), 1994).
//
// As a file:
//
//   {
//     "ranks_per_host": 8,
//     "intra": {"alpha_us": 4, "gb_per_s": 200},
//     "inter": {"alpha_us": 12, "gb_per_s": 50},
//     "algorithm": "ring",
//     "overlap": 0.9
//   }
//
// "inter" is the link of a host, which its ranks share. Without it, all ranks are on one host; without
// "ranks_per_host", too. The last two may be left out.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace cohort::plan {

struct Link {
  double alpha = 0;  ///< seconds for a message
  double beta = 0;   ///< seconds for a byte
  friend bool operator==(const Link&, const Link&) = default;
};

enum class Algorithm : std::uint8_t {
  best,  ///< the fastest that the cost model knows, for each size
  ring,  ///< rings, as NCCL uses them for large messages; trees where there is no ring
  tree,  ///< trees alone
};
std::string_view to_string(Algorithm algorithm);

struct Cluster {
  int ranks_per_host = 0;  ///< 0: all ranks are on one host
  Link intra{};
  std::optional<Link> inter{};
  Algorithm algorithm = Algorithm::best;
  /// How fast a rank computes while it communicates: 1 where communication needs no part of it, 0 where a rank has one
  /// core for both.
  double overlap = 1;
  friend bool operator==(const Cluster&, const Cluster&) = default;
};

/// Throw a ValueError that says what is wrong.
Cluster read_cluster(std::string_view json);
Algorithm parse_algorithm(std::string_view name);
/// "3:200": microseconds, and gigabytes (10^9 bytes) per second. `flag` is for the message.
Link parse_link(std::string_view text, std::string_view flag);
/// Throws a ValueError if a number makes no sense.
void check(const Cluster& cluster);

std::string to_json(const Cluster& cluster);
/// "3 us, 200 GB/s"
std::string to_string(const Link& link);

}  // namespace cohort::plan

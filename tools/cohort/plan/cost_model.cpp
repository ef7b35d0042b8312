// SPDX-License-Identifier: BSD-3-Clause
#include "plan/cost_model.h"

#include <cohort/error.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

namespace cohort::plan {

namespace {

/// A cost as multiples of alpha and of beta.
struct Terms {
  double messages = 0;
  double bytes = 0;
  double on(const Link& link) const { return messages * link.alpha + bytes * link.beta; }
};

double rounds_of_tree(int ranks) {
  return static_cast<double>(std::bit_width(static_cast<unsigned>(ranks) - 1));  // ceil(log2)
}

/// In the order of Algorithm's tree and ring, and one that only `best` chooses. Not all collectives have all.
struct Choice {
  Terms tree;
  Terms ring;
  Terms other;
};

enum class Kind { all_reduce, one_to_all, gather_parts, rooted_parts, all_to_all, barrier, one_to_one };

Kind kind_of(std::string_view operation) {
  if (operation.starts_with("all_reduce")) return Kind::all_reduce;
  if (operation == "broadcast" || operation == "reduce") return Kind::one_to_all;
  if (operation.starts_with("all_gather") || operation.starts_with("reduce_scatter")) return Kind::gather_parts;
  if (operation == "gather" || operation == "scatter") return Kind::rooted_parts;
  if (operation.find("barrier") != std::string_view::npos) return Kind::barrier;
  if (operation == "send" || operation.starts_with("recv") || operation == "permute_tensor") return Kind::one_to_one;
  return Kind::all_to_all;
}

Choice choice_of(Kind kind, double n, int ranks) {
  const double p = ranks;
  const double lg = rounds_of_tree(ranks);
  const double parts = (p - 1) / p * n;  // all parts but one's own
  switch (kind) {
    case Kind::all_reduce:
      // Recursive doubling; a ring of reduce_scatter and all_gather; Rabenseifner's halving and doubling.
      return {.tree = {lg, lg * n}, .ring = {2 * (p - 1), 2 * parts}, .other = {2 * lg, 2 * parts}};
    case Kind::one_to_all:
      // A binomial tree; scatter (gather) and a ring; the same with recursive doubling (halving).
      return {.tree = {lg, lg * n}, .ring = {lg + p - 1, 2 * parts}, .other = {2 * lg, 2 * parts}};
    case Kind::gather_parts:
      // Recursive doubling (halving); a ring.
      return {.tree = {lg, parts}, .ring = {p - 1, parts}, .other = {lg, parts}};
    case Kind::rooted_parts:
      return {.tree = {lg, parts}, .ring = {lg, parts}, .other = {lg, parts}};
    case Kind::all_to_all:
      // Bruck's; every rank with every other in turn.
      return {.tree = {lg, lg * n / 2}, .ring = {p - 1, parts}, .other = {p - 1, parts}};
    case Kind::barrier:
      return {.tree = {lg, 0}, .ring = {lg, 0}, .other = {lg, 0}};
    case Kind::one_to_one:
      return {.tree = {1, n}, .ring = {1, n}, .other = {1, n}};
  }
  return {};
}

Terms terms(Kind kind, double bytes, int ranks, const Link& link, Algorithm algorithm) {
  if (ranks < 2) return {};
  const auto choice = choice_of(kind, bytes, ranks);
  if (algorithm == Algorithm::tree) return choice.tree;
  if (algorithm == Algorithm::ring) return choice.ring;
  return std::min({choice.tree, choice.ring, choice.other},
                  [&](const Terms& a, const Terms& b) { return a.on(link) < b.on(link); });
}

double cost_of(Kind kind, double bytes, int ranks, const Link& link, Algorithm algorithm) {
  return terms(kind, bytes, ranks, link, algorithm).on(link);
}

}  // namespace

Placement place(int ranks, int stride, const Cluster& cluster) {
  if (cluster.ranks_per_host == 0) return {.per_host = ranks, .hosts = 1, .sharing = 1};
  const int per_host = std::clamp(cluster.ranks_per_host / std::max(stride, 1), 1, std::max(ranks, 1));
  return {.per_host = per_host,
          .hosts = (ranks + per_host - 1) / per_host,
          .sharing = std::max(cluster.ranks_per_host / per_host, 1)};
}

double cost_on_link(std::string_view operation, double bytes, int ranks, const Link& link, Algorithm algorithm) {
  return cost_of(kind_of(operation), bytes, ranks, link, algorithm);
}

double cost(std::string_view operation, std::size_t bytes, const Placement& placement, const Cluster& cluster) {
  const auto kind = kind_of(operation);
  const auto n = static_cast<double>(bytes);
  const auto inside = [&](Kind part, double part_bytes) {
    return cost_of(part, part_bytes, placement.per_host, cluster.intra, cluster.algorithm);
  };
  if (placement.hosts < 2) return inside(kind, n);
  if (!cluster.inter) throw ValueError("a group reaches over several hosts, and the link between hosts is not given");
  const Link shared{.alpha = cluster.inter->alpha, .beta = cluster.inter->beta * placement.sharing};
  const auto between = [&](Kind part, double part_bytes) {
    return cost_of(part, part_bytes, placement.hosts, shared, cluster.algorithm);
  };
  if (placement.per_host < 2) return between(kind, n);
  switch (kind) {
    case Kind::all_reduce:
      return 2 * inside(Kind::gather_parts, n) + between(kind, n);
    case Kind::one_to_all:
    case Kind::gather_parts:
    case Kind::barrier:
      return inside(kind, n) + between(kind, n);
    case Kind::rooted_parts:
      return inside(kind, n / placement.hosts) + between(kind, n);
    case Kind::all_to_all: {
      // Every rank with every other: with those of its host inside, and what all ranks of the host have for others
      // through the host's link.
      const double others = placement.ranks() - placement.per_host;
      return inside(kind, n / placement.hosts) + others * shared.alpha +
             n * others / placement.ranks() * placement.per_host * shared.beta;
    }
    case Kind::one_to_one:
      return between(kind, n);
  }
  return 0;
}

Link fit_link(const std::vector<Sample>& samples, int ranks, Algorithm algorithm) {
  if (samples.size() < 2 || ranks < 2) throw ValueError("a link is fitted to at least two samples of two ranks");
  // Which algorithm is the best depends on the link, so the two are found in turn; a handful of turns settles it.
  Link link{.alpha = 1e-6, .beta = 1e-10};
  for (int turn = 0; turn < 20; ++turn) {
    double mm = 0;  // the normal equations of least squares, each sample weighted by 1 / seconds
    double mb = 0;
    double bb = 0;
    double mt = 0;
    double bt = 0;
    for (const auto& each : samples) {
      const auto found = terms(kind_of(each.operation), static_cast<double>(each.bytes), ranks, link, algorithm);
      const double m = found.messages / each.seconds;
      const double b = found.bytes / each.seconds;
      mm += m * m;
      mb += m * b;
      bb += b * b;
      mt += m;
      bt += b;
    }
    const double determinant = mm * bb - mb * mb;
    if (!(determinant > 0)) throw ValueError("a link cannot be fitted: the samples are all of one size");
    // Noise can make one of them negative; then the other one explains all.
    Link next{.alpha = (mt * bb - bt * mb) / determinant, .beta = (bt * mm - mt * mb) / determinant};
    if (next.alpha < 0) next = {.alpha = 0, .beta = bt / bb};
    if (next.beta <= 0) next = {.alpha = mt / mm, .beta = std::numeric_limits<double>::min()};
    if (next == link) break;
    link = next;
  }
  return link;
}

}  // namespace cohort::plan

// SPDX-License-Identifier: BSD-3-Clause
//
// A Placement says how a distributed tensor lies on one dimension of its device mesh:
//
//   cohort::Shard rows(0);                   // the ranks hold consecutive parts of tensor dimension 0
//   cohort::Replicate whole;                 // every rank holds the whole tensor
//   cohort::Partial summand;                 // every rank holds a summand; the tensor is their sum
//   cohort::Partial candidate("max");        // likewise for avg, product, max and min
//
//   cohort::Placements placements{rows, whole};      // one for each mesh dimension
//   assert(placements[0].is_shard(0));
//   std::cout << cohort::to_string(placements);      // [S(0), R]
//
// Several mesh dimensions may shard the same tensor dimension: they are applied from left to right, so that
// {Shard(0), Shard(0)} on a mesh of 2 x 2 cuts dimension 0 in two halves, and each half in two quarters.
//
// n elements over W ranks: every rank gets ceil(n / W) elements as long as there are any. So the last ranks may hold
// fewer elements, or none.
#pragma once

#include <cohort/export.h>

#include <cstdint>
#include <functional>
#include <iosfwd>
#include <string>
#include <string_view>
#include <vector>

namespace cohort {

class COHORT_API Placement {
 public:
  enum class Kind : std::uint8_t { replicate, shard, strided_shard, partial };
  /// The reduction of a Partial.
  enum class Reduction : std::uint8_t { sum, avg, product, max, min };

  Kind kind() const noexcept { return kind_; }
  bool is_replicate() const noexcept { return kind_ == Kind::replicate; }
  /// Strided shards count as shards.
  bool is_shard() const noexcept { return kind_ == Kind::shard || kind_ == Kind::strided_shard; }
  bool is_shard(std::int64_t dim) const noexcept { return is_shard() && dim_ == dim; }
  bool is_strided_shard() const noexcept { return kind_ == Kind::strided_shard; }
  bool is_partial() const noexcept { return kind_ == Kind::partial; }
  bool is_partial(Reduction reduction) const noexcept { return is_partial() && reduction_ == reduction; }

  /// The tensor dimension of a shard; throws Error for the others.
  std::int64_t dim() const;
  /// The number of parts that other mesh dimensions will cut or have cut the dimension into; 1 unless this is a strided
  /// shard.
  std::int64_t split_factor() const noexcept { return split_factor_; }
  /// The reduction of a Partial; throws Error for the others.
  Reduction reduction() const;

  /// Strided shards differ from plain ones, in either order of the operands.
  bool operator==(const Placement&) const noexcept = default;

 protected:
  constexpr Placement(Kind kind, std::int64_t dim, std::int64_t split_factor, Reduction reduction) noexcept
      : dim_(dim), split_factor_(split_factor), kind_(kind), reduction_(reduction) {}

 private:
  std::int64_t dim_;
  std::int64_t split_factor_;
  Kind kind_;
  Reduction reduction_;
};

// These have no members of their own: a Placement holds any of them.

class COHORT_API Replicate : public Placement {
 public:
  constexpr Replicate() noexcept : Placement(Kind::replicate, 0, 1, Reduction::sum) {}
};

class COHORT_API Shard : public Placement {
 public:
  /// Functions that know the tensor also take negative dimensions, counted from the last one.
  constexpr explicit Shard(std::int64_t dim) noexcept : Placement(Kind::shard, dim, 1, Reduction::sum) {}
};

/// A shard of a dimension that mesh dimensions further to the right have cut before: what results when a tensor that is
/// already sharded on the last mesh dimension is sharded on an earlier one. The dimension is first cut into
/// `split_factor` parts; each rank holds its share of every part, one behind the other.
class COHORT_API StridedShard : public Placement {
 public:
  /// Throws ValueError unless split_factor is positive.
  StridedShard(std::int64_t dim, std::int64_t split_factor);
};

class COHORT_API Partial : public Placement {
 public:
  constexpr explicit Partial(Reduction reduction = Reduction::sum) noexcept
      : Placement(Kind::partial, 0, 1, reduction) {}
  /// "sum", "avg", "product", "max" or "min"; throws ValueError for other names.
  explicit Partial(std::string_view reduction);
};

using Placements = std::vector<Placement>;

COHORT_API std::string_view to_string(Placement::Reduction reduction);
/// R, S(0), _S(0, 2), P(sum).
COHORT_API std::string to_string(const Placement& placement);
/// [S(0), R].
COHORT_API std::string to_string(const Placements& placements);
COHORT_API std::ostream& operator<<(std::ostream& out, const Placement& placement);
COHORT_API std::size_t hash_value(const Placement& placement) noexcept;

/// What one rank holds of a dimension.
struct ShardRange {
  std::int64_t offset = 0;
  std::int64_t size = 0;
  bool operator==(const ShardRange&) const = default;
};

/// The part of `elements` that `rank` of `ranks` holds under a plain Shard. The offset of an empty part is `elements`.
constexpr ShardRange shard_range(std::int64_t elements, std::int64_t ranks, std::int64_t rank) noexcept {
  const auto chunk = (elements + ranks - 1) / ranks;
  const auto begin = chunk * rank < elements ? chunk * rank : elements;
  const auto end = chunk * (rank + 1) < elements ? chunk * (rank + 1) : elements;
  return {begin, end - begin};
}

}  // namespace cohort

template <>
struct std::hash<cohort::Placement> {
  std::size_t operator()(const cohort::Placement& placement) const noexcept { return cohort::hash_value(placement); }
};

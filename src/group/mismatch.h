// SPDX-License-Identifier: BSD-3-Clause
//
// Mismatch detection: if ranks call different operations, every rank gets an error that says so.
//
// An OpSignature holds what all ranks of a collective must agree on. Each backend compares signatures in the way its
// engine allows: shm and thread put the packed word beside the flag of every collective, and every rank reads those of
// all others before it returns; gloo and hybrid use its digest as the tag under which messages match, so that ranks
// which disagree do not match, and compare their latest signatures through the store when a deadline has passed
// (backends/common/failure_coordinator.h). At debug level detail compare_on_all_ranks() exchanges more before each
// collective, on any backend. docs/backends.md has a table of what each backend detects, and when.
#pragma once

#include <cohort/backend.h>
#include <cohort/dtype.h>
#include <cohort/op_type.h>
#include <cohort/operation.h>
#include <cohort/reduce_op.h>

#include <cstdint>
#include <initializer_list>
#include <string>

namespace cohort {

/// A 64-bit hash that spreads its inputs evenly, so that two different inputs collide only by chance.
constexpr std::uint64_t digest_of(std::initializer_list<std::uint64_t> parts) {
  std::uint64_t state = 0x9e3779b97f4a7c15U;
  for (const auto part : parts) {
    state = (state ^ part) * 0xbf58476d1ce4e5b9U;
    state ^= state >> 29U;
  }
  return state * 0x94d049bb133111ebU;
}

struct OpSignature {
  OpType op = OpType::unknown;  ///< does not distinguish single buffers from lists
  DType dtype = DType::u8;
  ReduceOp::Kind reduce = ReduceOp::Kind::sum;
  /// The root. For types without a root whose pieces may differ in size, a hash of the sizes.
  int root = 0;
  /// The bytes of the whole operation if all ranks know them, otherwise 0. Sizes of 64 GiB and more are not
  /// distinguished.
  std::uint64_t bytes = 0;
  /// Operation::layout. It is not part of the packed word.
  std::uint32_t layout = 0;

  static OpSignature of(const Operation& op);

  /// Packs all fields but the layout into one 64-bit word.
  std::uint64_t pack() const;
  static OpSignature unpack(std::uint64_t word);
  /// Differs if anything does; `whole` is that of the Call.
  std::uint64_t digest(std::uint64_t sequence, std::uint32_t whole = 0) const {
    return digest_of({pack(), sequence, layout, whole});
  }
};

/// A 32-bit digest that is not 0, which stands for "none" in Call::whole() and Operation::layout.
constexpr std::uint32_t short_digest(std::uint64_t digest) {
  const auto folded = static_cast<std::uint32_t>(digest ^ digest >> 32U);
  return folded == 0 ? 1 : folded;
}

/// A bit of the packed word that the signature leaves free.
inline constexpr std::uint64_t free_signature_bit = std::uint64_t{1} << 13U;

/// What the two ends of a message must agree on besides its size: the dtype and the layout.
constexpr std::uint32_t message_type(const Operation& op) {
  return static_cast<std::uint32_t>(op.dtype) | op.layout << 8U | (op.layout == 0 ? 0U : 1U << 31U);
}
/// "rank 1 sent 8 bytes of f32 where rank 0 expects 4 bytes of i32"
std::string describe_wrong_message(int sender, std::uint64_t sent, std::uint32_t sent_type, int receiver,
                                   std::uint64_t expected, std::uint32_t expected_type);

/// "all_reduce(sum, f32, 4096 bytes)", "broadcast(f32, 16 bytes, root 2)", "barrier()"
std::string to_string(const OpSignature& signature);

/// The message that every rank gets: "rank 1 called barrier() where rank 0 called ...".
std::string describe_mismatch(int rank, const std::string& called, int other, const std::string& other_called);

/// For debug level detail: all ranks exchange descriptions of the operation they are about to perform, including
/// shapes. Throws MismatchError on every rank if they differ. Since every rank gets every description, the ranks stay
/// synchronised.
void compare_on_all_ranks(Backend& backend, const Operation& op, Call& call);

}  // namespace cohort

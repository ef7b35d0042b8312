// SPDX-License-Identifier: BSD-3-Clause
//
// What is done to a recorded step before it is replayed (capture.h). Each pass can be switched:
//
//   auto step = cohort::capture([&](torch::Tensor x) { return net->forward(x); },
//                               {.watch = {net}, .passes = {.merge_common = false}});
//
// No pass changes a bit of a result. None moves one collective, send, receive or host action across another, on
// whichever groups, and none reorders random numbers. What each pass has done is in explain().
#pragma once

#include <cstddef>
#include <string>

namespace cohort {

struct PassOptions {
  /// Removes operators whose results nothing uses. Collectives, waits, random operators, host actions and operators
  /// that libtorch does not define stay.
  bool remove_dead = true;
  /// Computes once what is computed twice from unchanged tensors, if the first result still exists where the second one
  /// is made: what a step recomputes in order to save memory, it goes on recomputing.
  bool merge_common = true;
  /// Starts each asynchronous collective as early, and waits for it as late, as its data allow without raising the most
  /// memory that the step has at once by more than 1 MiB. A blocking collective of 64 KiB or more becomes an
  /// asynchronous one if the step has work to do meanwhile; a small one is faster on the caller's own thread. The
  /// collectives keep their order, so that a rank which replays and one which records agree.
  bool overlap = true;

  /// Makes one coalesced operation of neighbours in the order of collectives that have the same group, operation and
  /// dtype and do not depend on each other, while they are at most `fuse_cap` bytes together. Its members are performed
  /// one after another, each as it would be by itself. This changes which collectives a step issues. All ranks of a
  /// group must switch it alike, and record and replay at the same calls: a rank that records while the others replay
  /// issues the recorded collectives, which do not match. Before the first replay the ranks compare what they are going
  /// to issue (CaptureError if it differs).
  bool fuse_collectives = false;
  std::size_t fuse_cap = std::size_t{1} << 20;
};

/// What one pass has done to one recording.
struct PassReport {
  std::string name{};     ///< as in PassOptions
  std::size_t count = 0;  ///< of what it changed
  std::string text{};     ///< in words
};

}  // namespace cohort

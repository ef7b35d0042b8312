// SPDX-License-Identifier: BSD-3-Clause
//
// The last tensor of a checkpoint, by which its bytes are recognised as those that were written: a tensor like any
// other to readers that do not know it.
//
//   u64 CRC-64 of all bytes before it | with a secret: 32 bytes HMAC-SHA256 of all bytes before these
//
// It lies at the end of the file, so that a file is written in one pass and the HMAC can be verified before anything in
// the file is interpreted. The checksum finds accidents; only the HMAC tells files of this job from those of others.
// Its key is derived from the job's secret, which also authenticates connections: one cannot be used as the other.
#pragma once

#include <cohort/secret.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "torch/state/crc64.h"

namespace cohort {

/// Names of sealing tensors begin with this; each file of a checkpoint in several files has its own.
inline constexpr std::string_view seal_name = "cohort.seal";
inline constexpr std::size_t crc_bytes = 8;
inline constexpr std::size_t hmac_bytes = 32;

/// HMAC-SHA256 under a key that belongs to checkpoints alone.
class CheckpointHmac {
 public:
  explicit CheckpointHmac(const Secret& secret);
  ~CheckpointHmac();
  CheckpointHmac(const CheckpointHmac&) = delete;
  CheckpointHmac& operator=(const CheckpointHmac&) = delete;

  void add(const void* data, std::size_t bytes);
  /// Nothing can be added afterwards.
  std::string finish();
  /// Compares in a time that does not depend on where they differ.
  bool finish_as(std::string_view expected);

 private:
  struct Context;
  std::unique_ptr<Context> context_;
};

/// Computes a seal while the bytes pass.
class Seal {
 public:
  explicit Seal(const Secret* secret)
      : hmac_(secret == nullptr ? nullptr : std::make_unique<CheckpointHmac>(*secret)) {}

  std::size_t bytes() const { return hmac_ == nullptr ? crc_bytes : crc_bytes + hmac_bytes; }
  void add(const void* data, std::size_t bytes) {
    crc_.add(data, bytes);
    if (hmac_ != nullptr) hmac_->add(data, bytes);
  }
  std::string finish();

 private:
  Crc64 crc_;
  std::unique_ptr<CheckpointHmac> hmac_;
};

/// Proves that somebody who knows the secret gave this number to a checkpoint; in hexadecimal.
std::string serial_proof(std::uint64_t serial, const Secret& secret);
bool is_serial_proof(std::string_view proof, std::uint64_t serial, const Secret& secret);

std::string crc_text(std::uint64_t crc);
/// The reverse.
std::uint64_t crc_number(std::string_view text);

}  // namespace cohort

// SPDX-License-Identifier: BSD-3-Clause
//
// The job's secret: 32 random bytes that every process of the job knows and nobody else. Store clients and servers use
// it to authenticate each other (docs/security.md). All copies share one page of memory, which is left out of core
// dumps and overwritten with zeros when the last copy is gone.
//
//   const auto secret = cohort::Secret::generate();
//   secret.write_new("job.secret");                    // what `cohort secret job.secret` does
//   const auto same = cohort::Secret::load("job.secret");
#pragma once

#include <cohort/export.h>

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

namespace cohort {

class COHORT_API Secret {
 public:
  static constexpr std::size_t size = 32;

  /// A new secret from the kernel's random number generator.
  static Secret generate();
  /// Reads a file of 64 hexadecimal digits. It must be a regular file that belongs to this user or root, and nobody
  /// else may read it (mode 0600 or stricter). Otherwise throws a ValueError that contains the command to fix it.
  static Secret load(const std::string& path);
  static Secret from_bytes(std::span<const std::uint8_t, size> bytes);

  /// Creates the file with mode 0600. Throws ValueError if it exists.
  void write_new(const std::string& path) const;
  std::string hex() const;

  std::span<const std::uint8_t, size> bytes() const noexcept { return *bytes_; }

  // There is no move: a secret is never empty.
  Secret(const Secret&) = default;
  Secret& operator=(const Secret&) = default;
  ~Secret() = default;

 private:
  Secret();
  std::shared_ptr<std::array<std::uint8_t, size>> bytes_;
};

}  // namespace cohort

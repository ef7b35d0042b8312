// SPDX-License-Identifier: BSD-3-Clause
//
// The job's secret: 32 random bytes that every process of a job knows and nobody else. Stores prove it to each other
// before anything else is said (docs/security.md).
//
//   const auto secret = cohort::Secret::generate();
//   secret.write_new("job.secret");                    // mode 0600, refuses to overwrite; `cohort secret` does this
//   const auto same = cohort::Secret::load("job.secret");
#pragma once

#include <cohort/export.h>

#include <array>
#include <cstdint>
#include <span>
#include <string>

namespace cohort {

class COHORT_API Secret {
 public:
  static constexpr std::size_t size = 32;

  /// From the kernel's generator.
  static Secret generate();
  /// 64 hexadecimal digits. Others may not read the file (mode 0600 or stricter, own or root's): else a ValueError with
  /// the command that mends it.
  static Secret load(const std::string& path);
  static Secret from_bytes(std::span<const std::uint8_t, size> bytes);

  void write_new(const std::string& path) const;
  std::string hex() const;

  std::span<const std::uint8_t, size> bytes() const noexcept { return bytes_; }

  Secret(const Secret&) = default;
  Secret& operator=(const Secret&) = default;
  /// Wipes the bytes.
  ~Secret();

 private:
  Secret() = default;
  std::array<std::uint8_t, size> bytes_{};
};

}  // namespace cohort

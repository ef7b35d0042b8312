// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace cohort {

/// Bytes from the kernel's random number generator, suitable for keys.
void fill_random(std::span<std::byte> bytes);

using ProcessNonce = std::array<std::uint8_t, 16>;

/// Random bytes that identify this process. A forked child has other bytes than its parent.
ProcessNonce process_nonce();

}  // namespace cohort

// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace cohort {

/// Bytes from the kernel's generator, fit for keys.
void fill_random(std::span<std::byte> bytes);

using ProcessNonce = std::array<std::uint8_t, 16>;

/// Random bytes that tell this process from every other; a forked child has others than its parent.
ProcessNonce process_nonce();

}  // namespace cohort

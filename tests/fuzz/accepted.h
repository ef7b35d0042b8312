// SPDX-License-Identifier: BSD-3-Clause
#pragma once

namespace cohort::fuzz {

/// A target sets it for an input that it has taken for what it is meant to be. Seeds have to be accepted, but for those
/// whose names begin with "refused_": otherwise mutations of them exercise refusals alone (replay_main.cpp).
inline bool accepted = false;

}  // namespace cohort::fuzz

// SPDX-License-Identifier: BSD-3-Clause
//
// Writes the recorder's content in the format of PyTorch's flight recorder.
#pragma once

#include <cohort/flight_recorder.h>

#include <nlohmann/json_fwd.hpp>
#include <string_view>

#include "observe/recorder.h"

namespace cohort::observe {

/// `rank` is the rank of this process. An empty reason is left out.
nlohmann::json make_dump(const Snapshot& snapshot, int rank, const DumpOptions& options, std::string_view reason = {});

std::string encode_json(const nlohmann::json& dump);
std::string encode_cbor(const nlohmann::json& dump);

}  // namespace cohort::observe

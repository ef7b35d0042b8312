// SPDX-License-Identifier: BSD-3-Clause
#include "run/attempt_outcome.h"

#include <cohort/error.h>

#include <fmt/format.h>

#include <nlohmann/json.hpp>

namespace cohort::tool {

NLOHMANN_JSON_SERIALIZE_ENUM(AttemptOutcome::Kind, {{AttemptOutcome::Kind::go, "go"},
                                                    {AttemptOutcome::Kind::done, "done"},
                                                    {AttemptOutcome::Kind::failed, "failed"}})

std::string encode(const AttemptOutcome& outcome) {
  const nlohmann::json json{
      {"kind", outcome.kind}, {"exit_code", outcome.exit_code}, {"is_final", outcome.is_final}, {"text", outcome.text}};
  // A host name or a path need not be UTF-8.
  return json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

AttemptOutcome decode_outcome(std::string_view text) {
  try {
    const auto json = nlohmann::json::parse(text);
    return {json.at("kind"), json.at("exit_code"), json.at("is_final"), json.at("text")};
  } catch (const nlohmann::json::exception& e) {
    throw Error(
        fmt::format("the launcher of another host sent a message that this version does not understand: {}", e.what()));
  }
}

}  // namespace cohort::tool

// SPDX-License-Identifier: BSD-3-Clause
#include "verdict.h"

#include <cohort/error.h>

#include <fmt/format.h>

#include <nlohmann/json.hpp>

namespace cohort::tool {

NLOHMANN_JSON_SERIALIZE_ENUM(Verdict::Kind, {{Verdict::Kind::go, "go"},
                                             {Verdict::Kind::done, "done"},
                                             {Verdict::Kind::failed, "failed"}})

std::string encode(const Verdict& verdict) {
  const nlohmann::json json{
      {"kind", verdict.kind}, {"exit_code", verdict.exit_code}, {"is_final", verdict.is_final}, {"text", verdict.text}};
  // A host name or a path need not be UTF-8.
  return json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

Verdict decode_verdict(std::string_view text) {
  try {
    const auto json = nlohmann::json::parse(text);
    return {json.at("kind"), json.at("exit_code"), json.at("is_final"), json.at("text")};
  } catch (const nlohmann::json::exception& e) {
    throw Error(fmt::format("another host's launcher sent what this version does not understand: {}", e.what()));
  }
}

}  // namespace cohort::tool

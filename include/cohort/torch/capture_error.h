// SPDX-License-Identifier: BSD-3-Clause
//
// Why a step cannot be captured (capture.h):
//
//   auto step = cohort::capture([](torch::Tensor x) { return x.masked_select(x > 0).sum(); });
//   try {
//     step(x);
//   } catch (const cohort::CaptureError& e) {
//     std::cerr << e.what();        // the operator and its arguments, why that cannot be replayed, and what to do
//     if (e.reason() == cohort::CaptureRefusal::host_read) std::exit(1);
//   }
#pragma once

#include <cohort/error.h>
#include <cohort/export.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace cohort {

enum class CaptureRefusal : std::uint8_t {
  host_read,             ///< the host reads a tensor's value (item(), a data-dependent size): a replay would not
  host_write,            ///< memory is used that no operator of the step has written
  changing_number,       ///< a number in the step differs from one recording to the next
  changing_operators,    ///< the operators themselves differ from one recording to the next
  unsupported_operator,  ///< an operator that cannot be replayed
  unsupported_call,      ///< something of this library that cannot be replayed
  different_ranks,       ///< the ranks would issue different collectives
};
COHORT_API std::string_view to_string(CaptureRefusal reason);

class COHORT_API CaptureError : public Error {
 public:
  /// `context`: the operator with its arguments; `explanation`: why not; `hints`: what can be done instead.
  CaptureError(CaptureRefusal reason, std::string context, std::string explanation, std::vector<std::string> hints);

  CaptureRefusal reason() const noexcept { return reason_; }
  const std::string& refused() const noexcept { return refused_; }
  const std::string& explanation() const noexcept { return explanation_; }
  const std::vector<std::string>& hints() const noexcept { return hints_; }

 private:
  CaptureRefusal reason_;
  std::string refused_;
  std::string explanation_;
  std::vector<std::string> hints_;
};

}  // namespace cohort

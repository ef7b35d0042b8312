// SPDX-License-Identifier: BSD-3-Clause
#include "torch/capture/host_part.h"

#include <bit>
#include <cstdint>

namespace cohort::recording {

HostPart::HostPart(const Program& program) {
  std::size_t numbers = 0;
  for (const auto& each : program.instructions) {
    first_number_.push_back(numbers);
    if (const auto* const host = each.as<HostCall>()) events_.push_back({.action = &host->function, .number = nullptr});
    const auto* const call = each.as<OperatorCall>();
    if (call == nullptr) continue;
    for (const auto& number : call->host_numbers) events_.push_back({.action = nullptr, .number = &number.function});
    numbers += call->host_numbers.size();
  }
  first_number_.push_back(numbers);
  numbers_ = std::make_shared<std::vector<c10::Scalar>>(numbers);
}

void HostPart::run() {
  auto number = numbers_->begin();
  for (const auto& each : events_) {
    if (each.action != nullptr) {
      (*each.action)();
    } else {
      *number++ = (*each.number)();
    }
  }
}

std::function<c10::Scalar()> HostPart::source(std::size_t index) const {
  return [numbers = numbers_, index] { return (*numbers)[index]; };
}

bool are_equal_numbers(const c10::Scalar& a, const c10::Scalar& b) {
  if (a.type() != b.type()) return false;
  if (!a.isFloatingPoint()) return a.equal(b.toComplexDouble());
  return std::bit_cast<std::uint64_t>(a.toDouble()) == std::bit_cast<std::uint64_t>(b.toDouble());
}

}  // namespace cohort::recording

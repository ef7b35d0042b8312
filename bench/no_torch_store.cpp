// SPDX-License-Identifier: BSD-3-Clause
//
// Stands in for torch_store.cpp where there is no PyTorch.
#include <stdexcept>

#include "torch_store.h"

namespace cohort::bench {

namespace {
[[noreturn]] void missing() {
  throw std::logic_error("built without PyTorch");
}
}  // namespace

struct TorchStore::Impl {};

bool TorchStore::is_available() {
  return false;
}
std::string TorchStore::version() {
  return {};
}
TorchStore::TorchStore(const std::string&, std::uint16_t, bool) {
  missing();
}
TorchStore::~TorchStore() = default;
std::uint16_t TorchStore::port() const {
  missing();
}
void TorchStore::set(const std::string&, const std::string&) {
  missing();
}
std::size_t TorchStore::get(const std::string&) {
  missing();
}
std::int64_t TorchStore::add(const std::string&, std::int64_t) {
  missing();
}
void TorchStore::wait(const std::string&) {
  missing();
}

}  // namespace cohort::bench

// SPDX-License-Identifier: BSD-3-Clause
//
// One function of Gloo, by its mangled name, with nothing of Gloo behind it.
#include <cstdlib>

extern "C" __attribute__((visibility("default"))) void _ZN4gloo7Context19createUnboundBufferEPvm() {
  std::abort();
}

// SPDX-License-Identifier: BSD-3-Clause
//
// One function of Gloo under its mangled name, without anything of Gloo behind it.
#include <cstdlib>

extern "C" __attribute__((visibility("default"))) void _ZN4gloo7Context19createUnboundBufferEPvm() {
  std::abort();
}

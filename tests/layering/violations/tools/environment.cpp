// SPDX-License-Identifier: BSD-3-Clause
// Expected: the environment is read outside its one place.
#include <cstdlib>

const char* home() {
  return std::getenv("HOME");
}

// SPDX-License-Identifier: BSD-3-Clause
// Expected: a public header shows a library we build with.
#pragma once

#include <fmt/format.h>

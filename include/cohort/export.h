// SPDX-License-Identifier: BSD-3-Clause
#pragma once

/// Marks what the shared library exports. Everything else is hidden (-fvisibility=hidden).
#define COHORT_API __attribute__((visibility("default")))

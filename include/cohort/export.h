// SPDX-License-Identifier: BSD-3-Clause
#pragma once

/// Marks what the shared library shows to the outside; everything else is hidden (-fvisibility=hidden).
#define COHORT_API __attribute__((visibility("default")))

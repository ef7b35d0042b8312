// SPDX-License-Identifier: BSD-3-Clause
//
// Included before everything else when clang-tidy reads the torch layer. libtorch 1.13 has vectors of a type that is
// incomplete at that point (c10::IValue). In C++20 libstdc++ 12 makes the members of vector constexpr, and clang
// instantiates constexpr functions as soon as they are named, so that it rejects those headers; GCC waits. Here vector
// is read once as in C++17, where its members are not constexpr.
#pragma once

#include <bits/ranges_uninitialized.h>

#include <compare>
#include <memory>
#include <string>
#undef _GLIBCXX20_CONSTEXPR
#define _GLIBCXX20_CONSTEXPR  // NOLINT
#define __fill_a1 fill_bits   // NOLINT: <string> has declared it as constexpr
#include <vector>
#undef __fill_a1
#undef _GLIBCXX20_CONSTEXPR
#define _GLIBCXX20_CONSTEXPR constexpr  // NOLINT

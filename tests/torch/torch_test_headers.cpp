// SPDX-License-Identifier: BSD-3-Clause
//
// CMake precompiles headers for a target, and a target has sources. This one is never linked.
int main() {}

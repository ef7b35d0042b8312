// SPDX-License-Identifier: BSD-3-Clause
//
// Only there to have the headers that every test includes compiled once.

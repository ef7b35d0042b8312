// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <string>

#include "data.h"
#include "model.h"
#include "options.h"

namespace gpt {

/// What the model writes by itself, letter by letter, each drawn by the odds it gives.
std::string sample(Gpt& model, const Text& text, const Options& options, torch::Device device);

}  // namespace gpt

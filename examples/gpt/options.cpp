// SPDX-License-Identifier: BSD-3-Clause
#include "options.h"

#include <CLI/CLI.hpp>

namespace gpt {

namespace {

constexpr auto what_it_does =
    R"(Trains a small GPT, letter by letter, with as many processes as it is started as:

  cohort run -n 2 gpt_demo

and then the first steps once more with one process, to show that both learn the same. At the end the model tells a story.)";

}  // namespace

bool parse(int argc, char** argv, Options& options, int& exit_code) {
  CLI::App app(what_it_does);
  app.add_option("--text", options.text, "the file to learn from; default: stories.txt beside the program")
      ->check(CLI::ExistingFile);
  app.add_option("--device", options.device,
                 "cpu or cuda (each process takes the GPU of its local rank; libtorch must be built for it)")
      ->check(CLI::IsMember({"cpu", "cuda"}))
      ->capture_default_str();
  const auto positive = [&](const char* name, int& value, const char* meaning) {
    app.add_option(name, value, meaning)->check(CLI::PositiveNumber)->capture_default_str();
  };
  positive("--steps", options.steps, "steps of the optimizer");
  positive("--batch", options.batch, "sequences in a step, over all processes");
  positive("--context", options.context, "letters in a sequence");
  positive("--layers", options.layers, "transformer layers");
  positive("--heads", options.heads, "heads of each layer");
  positive("--width", options.width, "width of the model, a multiple of --heads");
  positive("--threads", options.threads, "compute threads of each process");
  app.add_option("--lr", options.learning_rate, "learning rate at its highest")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--seed", options.seed, "of weights, batches and samples")->capture_default_str();
  app.add_option("--sample", options.sample, "letters to write at the end; 0: none")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  app.add_option("--temperature", options.temperature, "of the samples: lower is more careful")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_flag("--float", options.single_precision,
               "compute in float: faster, but rounding alone makes the two curves differ after some hundred steps");
  app.add_flag("--in-place", options.in_place,
               "show progress in one line of the terminal, also where the output goes through a launcher");
  app.add_option("--losses", options.losses, "write the loss of every step, with and without peers, as CSV");
  app.add_option("--timeline", options.timeline,
                 "write when each bucket of gradients was reduced, for Perfetto or chrome://tracing");
  app.add_option("--compare", options.compare, "steps to repeat with one process, which must learn the same; 0: none")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    exit_code = app.exit(e) == 0 ? 0 : 2;
    return false;
  }
  if (options.width % options.heads != 0) {
    std::cerr << "--width (" << options.width << ") must be a multiple of --heads (" << options.heads << ")\n";
    exit_code = 2;
    return false;
  }
  return true;
}

}  // namespace gpt

// SPDX-License-Identifier: BSD-3-Clause
//
// The demo: a small GPT learns to tell stories, trained by several processes. Start it with
//
//   cohort run -n 2 ./gpt_demo              # --help says what can be changed
//   cohort run -n gpu ./gpt_demo --device cuda --float --width 384 --layers 6 --heads 6 --batch 64 --context 128
//                                           # one process for each GPU; --lr 0.001 --steps 300 suit this size
//
// All that makes it a distributed program is in train_together(): a group, the model put into a
// DistributedDataParallel, and batches that are this process's share.
#include <cohort/cohort.h>
#include <cohort/env.h>
#include <cohort/launch.h>
#include <cohort/torch/ddp.h>
#include <malloc.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <memory>
#include <optional>
#include <stdexcept>

#include "data.h"
#include "model.h"
#include "options.h"
#include "progress.h"
#include "sample.h"
#include "train.h"

using namespace std::chrono_literals;

namespace gpt {

namespace {

struct Run {
  std::shared_ptr<Gpt> model;
  std::vector<double> losses;
  double tokens_per_second = 0;
};

std::shared_ptr<Gpt> new_model(const Text& text, const Options& options, torch::Device device) {
  torch::manual_seed(options.seed);
  auto model = std::make_shared<Gpt>(Shape{.letters = text.letters(),
                                           .context = options.context,
                                           .layers = options.layers,
                                           .heads = options.heads,
                                           .width = options.width});
  model->to(device);
  return model;
}

/// How much of a step goes by with nothing but communication: what is hidden behind the backward pass costs no time.
std::string communication(const auto& ddp) {
  const auto data = ddp.logging_data();
  const auto time = [&](const char* name) { return static_cast<double>(data.integer(name)); };
  const auto bare = std::max(0.0, time("avg_backward_comm_time") - time("avg_backward_compute_comm_overlap_time"));
  const auto step = time("avg_forward_compute_time") + time("avg_backward_compute_time") + bare;
  std::array<char, 48> text{};
  if (step > 0) std::snprintf(text.data(), text.size(), "  communication %.1f %%", 100 * bare / step);
  return text.data();
}

Run train_together(const cohort::ProcessGroupPtr& pg, const Text& text, const Batches& batches, const Options& options,
                   torch::Device device) {
  auto model = new_model(text, options, device);
  cohort::DistributedDataParallel ddp(model, {.process_group = pg});
  ddp.set_logging_sample_rate(10);
  if (!options.timeline.empty()) ddp.record_timeline();
  Progress progress(pg->rank() == 0, options.in_place, options.steps, options.batch * options.context);
  const Share share{.rank = pg->rank(), .size = pg->size(), .device = device, .average = [&](torch::Tensor& loss) {
                      pg->all_reduce(loss, {.op = cohort::ReduceOp::avg(), .stream = cohort::current_stream(loss)});
                    }};
  auto losses = train(ddp, batches, share, options, options.steps,
                      [&](int step, double loss) { progress.step(step, loss, communication(ddp)); });
  if (!options.timeline.empty() && pg->rank() == 0) std::ofstream(options.timeline) << ddp.timeline_json();
  return {model, std::move(losses), progress.tokens_per_second()};
}

Run train_alone(const Text& text, const Batches& batches, const Options& options, torch::Device device) {
  auto model = new_model(text, options, device);
  const int steps = std::min(options.compare, options.steps);
  Progress progress(true, options.in_place, steps, options.batch * options.context);
  auto losses = train(*model, batches, {.device = device}, options, steps,
                      [&](int step, double loss) { progress.step(step, loss); });
  return {model, std::move(losses), progress.tokens_per_second()};
}

std::string many(int n) {
  return n == 1 ? "1 process" : std::to_string(n) + " processes";
}

void compare(const Run& together, const Run& alone, int size) {
  std::printf("\n  step   %-12s   1 process alone   difference\n", many(size).c_str());
  const auto steps = alone.losses.size();
  double largest = 0;
  for (std::size_t i = 0; i < steps; ++i) {
    const auto difference = std::abs(together.losses[i] - alone.losses[i]);
    largest = std::max(largest, difference);
    if (i != 0 && i + 1 != steps && (i + 1) % std::max<std::size_t>(1, steps / 5) != 0) continue;
    std::printf("  %4zu   %-12.5f   %-15.5f   %.1e\n", i + 1, together.losses[i], alone.losses[i], difference);
  }
  std::printf("  largest difference of these %zu steps: %.1e (both compute the same sums, in another order)\n", steps,
              largest);
  std::printf("  %s: %.0f tokens/s, one alone: %.0f: %.2f times the speed\n\n", many(size).c_str(),
              together.tokens_per_second, alone.tokens_per_second,
              together.tokens_per_second / alone.tokens_per_second);
}

void write_losses(const std::string& file, const Run& together, const Run* alone, int size) {
  std::ofstream out(file);
  out << "step," << many(size) << (alone != nullptr ? ",1 process alone" : "") << '\n';
  out.precision(17);
  for (std::size_t i = 0; i < together.losses.size(); ++i) {
    out << i + 1 << ',' << together.losses[i];
    if (alone != nullptr) out << ',';
    if (alone != nullptr && i < alone->losses.size()) out << alone->losses[i];
    out << '\n';
  }
}

torch::Device device_of(const Options& options) {
  if (options.device == "cpu") return torch::kCPU;
  if (!torch::cuda::is_available()) {
    throw std::runtime_error("--device cuda: this libtorch sees no GPU (is it a CUDA build, and is there a driver?)");
  }
  const auto launch = cohort::find_launch(cohort::Env::read());
  return torch::Device(torch::kCUDA, static_cast<c10::DeviceIndex>(launch ? launch->local_rank.value_or(0) : 0));
}

void demo(const Options& options) {
  at::set_num_threads(options.threads);
  // Every step frees what the next one allocates. Given back to the system in between, each page is cleared anew: a
  // tenth of the time.
  ::mallopt(M_MMAP_THRESHOLD, 32 << 20);
  ::mallopt(M_TRIM_THRESHOLD, 512 << 20);
  torch::set_default_dtype(c10::scalarTypeToTypeMeta(options.single_precision ? torch::kFloat : torch::kDouble));
  const auto text_file = options.text.empty()
                             ? std::filesystem::read_symlink("/proc/self/exe").parent_path() / "stories.txt"
                             : std::filesystem::path(options.text);
  const Text text(text_file);
  const Batches batches(text, options.batch, options.context, options.seed);
  const auto device = device_of(options);
  const auto pg = cohort::new_group("auto", 60s, device.str());  // shared memory on one host, NCCL for GPUs
  if (options.batch % pg->size() != 0) {
    throw std::runtime_error("--batch " + std::to_string(options.batch) + " cannot be shared evenly by " +
                             many(pg->size()));
  }
  const bool speaks = pg->rank() == 0;
  if (speaks) {
    std::int64_t parameters = 0;
    for (const auto& each : new_model(text, options, torch::kCPU)->parameters()) parameters += each.numel();
    std::cout << "A GPT of " << parameters << " parameters reads " << text_file.filename().string() << " ("
              << text.tokens().numel() << " letters), " << many(pg->size()) << " on " << device << std::endl;
  }
  const auto together = train_together(pg, text, batches, options, device);
  pg->shutdown();
  if (!speaks) return;  // what follows is for one
  std::optional<Run> alone;
  if (options.compare > 0) {
    std::cout << "The first steps with one process:" << std::endl;
    alone = train_alone(text, batches, options, device);
    compare(together, *alone, pg->size());
  }
  if (!options.losses.empty()) write_losses(options.losses, together, alone ? &*alone : nullptr, pg->size());
  if (options.sample > 0) {
    std::cout << "What the model writes:\n\n" << sample(*together.model, text, options, device) << std::endl;
  }
}

}  // namespace

}  // namespace gpt

int main(int argc, char** argv) {
  gpt::Options options;
  int exit_code = 0;
  if (!gpt::parse(argc, argv, options, exit_code)) return exit_code;
  try {
    gpt::demo(options);
    return 0;
  } catch (const std::exception& e) {
    std::cerr << "gpt_demo: " << e.what() << '\n';
    return 1;
  }
}

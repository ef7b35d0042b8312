// SPDX-License-Identifier: BSD-3-Clause
#include <ATen/core/grad_mode.h>
#include <cohort/log.h>
#include <cohort/torch/capture.h>

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "graph/names.h"
#include "torch/capture/caller_memory.h"
#include "torch/capture/compare.h"
#include "torch/capture/compare_ranks.h"
#include "torch/capture/graph_replay.h"
#include "torch/capture/guards.h"
#include "torch/capture/hidden_reads.h"
#include "torch/capture/passes/memory_plan.h"
#include "torch/capture/passes/passes.h"
#include "torch/capture/program.h"
#include "torch/capture/recorder.h"
#include "torch/capture/replay.h"

namespace cohort::detail {

using recording::Program;

/// One way in which the step goes.
struct Recording {
  std::size_t number;  // in the order in which they were begun
  std::string reason;  // why it was made
  std::unique_ptr<recording::Guards> guards{};
  std::vector<WatchedTensor> parameters{};
  std::shared_ptr<const Program> program{};
  std::shared_ptr<const Program> recorded{};  // as it was before the passes, if it is to be verified
  std::vector<bool> replaced_gradients{};     // of the parameters
  std::optional<recording::CallerMemory> memory{};
  std::vector<PassReport> passes{};  // what they did to the program
  // Made when somebody asks for it: texts of thousands of nodes take milliseconds.
  mutable std::optional<Graph> shown{};
  GraphTimeline timeline{};
  std::shared_ptr<void> container{};
  std::optional<recording::Replayer> replayer{};             // when two recordings were alike
  std::optional<recording::GraphReplayer> graph_replayer{};  // instead of it, for steps on a GPU
  int attempts = 0;
  std::size_t replays = 0;
  std::size_t verified = 0;      // how often it was compared with the step
  std::size_t not_verified = 0;  // how often it should have been
  std::string last_difference{};
  std::string last_refusal{};  // of the call that could not be captured, with what to change

  const Graph& graph() const {
    if (!shown) shown = recording::graph_of(*program);
    return *shown;
  }
};

namespace {

std::vector<at::Tensor> without_history(std::vector<at::Tensor> tensors) {
  for (auto& each : tensors) {
    if (each.defined()) each = each.detach();
  }
  return tensors;
}

CapturedResult run_as_it_is(const std::function<CapturedResult()>& run) {
  auto result = run();
  result.tensors = without_history(std::move(result.tensors));
  return result;
}

std::vector<std::string> hints_for(const recording::RecordingDifference& found) {
  std::vector<std::string> hints;
  if (found.reason == CaptureRefusal::changing_number) {
    hints.emplace_back("Use an optimizer of cohort::optim, or give the number with a HostArgument (capture_host.h).");
    hints.emplace_back("A number that belongs to the call can be an argument of the step, or a tensor.");
  } else if (found.reason == CaptureRefusal::host_write) {
    hints.emplace_back("Make the tensor before the step and pass it as an argument, or fill it with an operator.");
  } else {
    hints.emplace_back("What decides which operators run must be an argument of the step or be watched.");
  }
  return hints;
}

CaptureError refusal_of(const recording::RecordingDifference& found) {
  return {found.reason, found.where, found.what, hints_for(found)};
}

/// What came of running the step under a recorder.
struct RecordedRun {
  CapturedResult result{};
  const recording::RefusedOperator* hidden_read = nullptr;
  bool is_whole = false;
};

RecordedRun run_under(recording::Recorder& recorder, const std::function<CapturedResult()>& run) {
  RecordedRun made;
  const recording::RecordingScope scope(recorder);
  const recording::HiddenReads reads;
  made.result = run();
  made.hidden_read = reads.first();
  made.is_whole = recording::Recorder::active() == &recorder;
  return made;
}

/// The program of such a run, or the CaptureError that says why there is none.
Program program_of(recording::Recorder& recorder, const RecordedRun& made) {
  if (recorder.refusal()) throw CaptureError(*recorder.refusal());
  if (!made.is_whole) {
    throw CaptureError(
        CaptureRefusal::unsupported_call, "something that has changed the dispatch keys of this thread",
        "what it computed from then on was not recorded (functorch does so when its last transform ends)",
        {"Leave vmap, jvp and the other transforms of functorch out of the step."});
  }
  if (made.hidden_read != nullptr) {
    throw recording::error_of(*made.hidden_read->refusal, std::string(made.hidden_read->name));
  }
  return recorder.finish(made.result.tensors);
}

}  // namespace

struct CapturedStep::Impl {
  CaptureOptions options;
  std::vector<std::unique_ptr<Recording>> recordings{};  // the one used last is the first
  std::size_t begun = 0;
  std::size_t dropped = 0;     // because there were more than max_recordings
  std::size_t to_measure = 0;  // replays
  std::string eager_reason{};  // not empty: the step always runs as it is
  recording::RankComparison ranks{};
  std::size_t calls = 0;  // alike on all ranks, as the collectives of the step are

  Recording* find(const CapturedCall& call, std::string& failure);
  /// The one used last of those that have been recorded.
  const Recording& newest() const;
  /// A new one, which becomes the first.
  Recording& begin(std::string reason);
  CapturedResult record(Recording* found, const std::string& failure, const CapturedCall& call,
                        const std::function<CapturedResult()>& run);
  CapturedResult record_with(recording::Recorder& recorder, Recording& recording,
                             const std::function<CapturedResult()>& run);
  CapturedResult replay(Recording& recording, const CapturedCall& call);
  /// Runs and records the step instead of replaying it, and compares it with the recording.
  CapturedResult verify(Recording& recording, const CapturedCall& call, const std::function<CapturedResult()>& run);
  static bool can_be_compared(const Recording& recording);
  /// What one rank has found, all ranks throw: at every call that verifies, also on a rank that could not compare.
  void tell_peers(const Program& program, const std::optional<CaptureError>& found);
  void tell_of_refusal(const CaptureError& error);
  void settle(Recording& recording, Program program);
  void give_up(const CaptureError& error);
};

CapturedStep::CapturedStep(CaptureOptions options)
    : impl_(std::make_unique<Impl>(Impl{.options = std::move(options)})) {
  if (impl_->options.max_recordings == 0 || impl_->options.max_attempts < 2) {
    throw ValueError("capture: max_recordings must be at least 1 and max_attempts at least 2");
  }
}
CapturedStep::CapturedStep(CapturedStep&&) noexcept = default;
CapturedStep& CapturedStep::operator=(CapturedStep&&) noexcept = default;
CapturedStep::~CapturedStep() = default;

/// The recording whose guards hold; it becomes the first. `failure` is that of the first one before.
Recording* CapturedStep::Impl::find(const CapturedCall& call, std::string& failure) {
  for (std::size_t i = 0; i < recordings.size(); ++i) {
    if (auto failed = recordings[i]->guards->failure(call)) {
      if (i == 0) failure = std::move(*failed);
      continue;
    }
    std::rotate(recordings.begin(), recordings.begin() + static_cast<std::ptrdiff_t>(i),
                recordings.begin() + static_cast<std::ptrdiff_t>(i) + 1);
    return recordings.front().get();
  }
  return nullptr;
}

Recording& CapturedStep::Impl::begin(std::string reason) {
  recordings.insert(recordings.begin(),
                    std::make_unique<Recording>(Recording{.number = ++begun, .reason = std::move(reason)}));
  if (recordings.size() > options.max_recordings) {
    recordings.pop_back();
    ++dropped;
  }
  return *recordings.front();
}

CapturedResult CapturedStep::Impl::record(Recording* found, const std::string& failure, const CapturedCall& call,
                                          const std::function<CapturedResult()>& run) {
  std::unique_ptr<recording::Guards> guards;
  std::optional<recording::Recorder> recorder;
  try {
    // Both refuse what they do not know, before anything of the step has run.
    guards = std::make_unique<recording::Guards>(call, options.watch);
    recorder.emplace(call.tensors, guards->parameters(),
                     recording::Recorder::Options{
                         .on_refusal = options.allow_eager ? recording::Recorder::OnRefusal::stops
                                                           : recording::Recorder::OnRefusal::throws,
                         .source_lines = options.source_lines,
                     });
  } catch (const CaptureError& error) {
    give_up(error);
    return run_as_it_is(run);
  }
  auto& recording = found != nullptr ? *found : begin(failure.empty() ? "the first call" : failure);
  recording.parameters = guards->parameters();
  recording.guards = std::move(guards);
  recording.last_refusal.clear();
  try {
    return record_with(*recorder, recording, run);
  } catch (const CaptureError& error) {
    recording.last_refusal = error.what();
    throw;
  }
}

CapturedResult CapturedStep::Impl::record_with(recording::Recorder& recorder, Recording& recording,
                                               const std::function<CapturedResult()>& run) {
  auto made = run_under(recorder, run);
  ++recording.attempts;
  recording.container = made.result.container;
  try {
    settle(recording, program_of(recorder, made));
  } catch (const CaptureError& error) {
    give_up(error);  // the recording does not exist any more if this returns
  }
  made.result.tensors = without_history(std::move(made.result.tensors));
  return std::move(made.result);
}

CapturedResult CapturedStep::Impl::verify(Recording& recording, const CapturedCall& call,
                                          const std::function<CapturedResult()>& run) {
  // A refusal waits for the end of the step, so that this rank comes to all collectives to which the others come.
  recording::Recorder recorder(call.tensors, recording.parameters,
                               {.on_refusal = recording::Recorder::OnRefusal::stops, .source_lines = false});
  auto made = run_under(recorder, run);
  std::optional<CaptureError> found;
  try {
    const auto different = recording::difference(*recording.recorded, program_of(recorder, made));
    if (different) {
      found.emplace(different->reason, different->where,
                    fmt::format("{}; a replay does not see that, so those before this call may have used the old one",
                                different->what),
                    hints_for(*different));
    }
  } catch (const CaptureError& error) {
    found = error;
  }
  ++recording.verified;
  const auto recorded = recording.recorded;
  tell_peers(*recorded, found);
  made.result.tensors = without_history(std::move(made.result.tensors));
  return std::move(made.result);
}

void CapturedStep::Impl::tell_peers(const Program& program, const std::optional<CaptureError>& found) {
  std::optional<recording::RankComparison::Finding> other;
  if (!options.allow_eager) {
    const auto text = found ? fmt::format("{}: {}", found->refused(), found->explanation()) : std::string();
    other = ranks.first_finding(program.groups, recording::communication_of(program), text);
  }
  if (!found && !other) return;
  recordings.erase(recordings.begin());  // the next call records the step as it is now
  if (found) throw CaptureError(*found);
  throw CaptureError(CaptureRefusal::different_ranks,
                     fmt::format("the step on rank {} of group \"{}\"", other->rank, other->group),
                     fmt::format("it is not what was recorded there. {}", other->text),
                     {"What the step uses there must be an argument of the step or be watched."});
}

/// This rank does not come to tell_peers(), where the others may be.
void CapturedStep::Impl::tell_of_refusal(const CaptureError& error) {
  if (options.allow_eager || recordings.empty() || recordings.front()->program == nullptr) return;
  const auto& program = *recordings.front()->program;
  try {
    ranks.first_finding(program.groups, recording::communication_of(program),
                        fmt::format("{}: {}", error.refused(), error.explanation()));
  } catch (const Error&) {  // they are elsewhere in the step, and learn of it there
  }
}

/// A gradient that the step replaces may be there or not when it begins, which changes what is recorded.
bool CapturedStep::Impl::can_be_compared(const Recording& recording) {
  const auto& gradients = recording.recorded->gradients;
  for (std::size_t i = 0; i < gradients.size(); ++i) {
    if (gradients[i].has_value() != recording.parameters[i].tensor.grad().defined()) return false;
  }
  return true;
}

void CapturedStep::Impl::settle(Recording& recording, Program program) {
  recording.timeline = {};
  auto before = std::move(recording.program);
  const auto found = before == nullptr ? std::nullopt : recording::difference(*before, program);
  const bool is_settled = before != nullptr && !found;
  before.reset();  // it holds tensors
  for (const auto& each : program.groups) recording.guards->add_group(each);
  recording.shown.reset();
  // As recorded: another rank's recordings may not agree yet. A rank that runs the step as it is would not come to the
  // exchange.
  if (!options.allow_eager) ranks.compare(program.groups, recording::communication_of(program));
  if (is_settled) {
    if (const auto dead = recording::constant_of_the_step(program)) throw refusal_of(*dead);
    recording.guards->add_memory(program);
    if (options.verify_every > 0) recording.recorded = std::make_shared<const Program>(program);
    recording.passes = recording::optimize(program, options.passes);
  }
  recording.program = std::make_shared<const Program>(std::move(program));
  if (is_settled) {
    // What a rank computes between its collectives may have kept a pass from changing them.
    if (options.passes.fuse_collectives && !options.allow_eager) {
      ranks.compare_now(recording.program->groups, recording::communication_of(*recording.program));
    }
    recording.replayer.emplace(recording.program);
    recording.replaced_gradients = recording::replaced_gradients(*recording.program);
    recording.memory.emplace(*recording.program, recording.parameters);
    if (options.cuda_graph && recording::GraphReplayer::concerns(*recording.program)) {
      recording.graph_replayer.emplace(recording.program);
    }
  }
  if (!found) return;
  recording.last_difference = fmt::format("{}: {}", found->where, found->what);
  if (recording.attempts >= options.max_attempts) throw refusal_of(*found);
}

void CapturedStep::Impl::give_up(const CaptureError& error) {
  if (!options.allow_eager) throw error;
  eager_reason = error.what();
  recordings.clear();
  log(LogLevel::warn, fmt::format("capture: the step runs without being captured: {}", error.what()));
}

CapturedResult CapturedStep::Impl::replay(Recording& recording, const CapturedCall& call) {
  std::vector<at::Tensor> gradients;
  gradients.reserve(recording.parameters.size());
  for (std::size_t i = 0; i < recording.parameters.size(); ++i) {
    auto& gradient = recording.parameters[i].tensor.mutable_grad();
    if (recording.replaced_gradients[i]) gradient.reset();
    gradients.push_back(gradient);
  }
  recording.memory->mark_written(call.tensors, gradients);
  CapturedResult result{.tensors = {}, .container = recording.container};
  std::vector<at::Tensor> left;
  if (to_measure > 0) {
    // Node by node, also where a CUDA graph would be launched as a whole.
    recording::ReplayClock clock(*recording.program);
    result.tensors = recording.replayer->run(call.tensors, gradients, &clock);
    left = recording.replayer->take_left_gradients();
    recording.timeline.replays.push_back(clock.finish());
    --to_measure;
  } else {
    const auto run = [&](auto& replayer) {
      result.tensors = replayer.run(call.tensors, gradients);
      left = replayer.take_left_gradients();
    };
    recording.graph_replayer ? run(*recording.graph_replayer) : run(*recording.replayer);
  }
  for (std::size_t i = 0; i < left.size(); ++i) {
    recording.parameters[recording.program->final_gradients[i].parameter].tensor.mutable_grad() = std::move(left[i]);
  }
  ++recording.replays;
  return result;
}

CapturedResult CapturedStep::call(const CapturedCall& call, const std::function<CapturedResult()>& run) {
  // A step in a step: the outer one records what this one does, and may differentiate through it.
  if (recording::Recorder::active() != nullptr) return run();
  auto& impl = *impl_;
  if (!impl.eager_reason.empty()) return run_as_it_is(run);
  std::string failure;
  auto* const found = impl.find(call, failure);
  const bool is_due = impl.options.verify_every > 0 && ++impl.calls % impl.options.verify_every == 0;
  const bool is_settled = found != nullptr && found->replayer;
  if (is_due && is_settled) {
    if (impl.can_be_compared(*found)) return impl.verify(*found, call, run);
    ++found->not_verified;
  }
  CapturedResult result;
  try {
    result = is_settled ? impl.replay(*found, call) : impl.record(found, failure, call, run);
  } catch (const CaptureError& error) {
    if (is_due) impl.tell_of_refusal(error);
    throw;
  }
  if (is_due && impl.eager_reason.empty()) {
    const auto program = impl.recordings.front()->program;
    impl.tell_peers(*program, std::nullopt);
  }
  return result;
}

const Recording& CapturedStep::Impl::newest() const {
  for (const auto& each : recordings) {
    if (each->program != nullptr) return *each;
  }
  if (!eager_reason.empty()) throw Error("capture: the step is not captured: " + eager_reason);
  throw Error("capture: the step has not been called yet, or no call has succeeded");
}

const Graph& CapturedStep::graph() const {
  return impl_->newest().graph();
}

void CapturedStep::measure(std::size_t replays) {
  impl_->to_measure = replays;
  for (const auto& each : impl_->recordings) each->timeline = {};
}

const GraphTimeline& CapturedStep::timeline() const {
  return impl_->newest().timeline;
}

std::size_t CapturedStep::recordings() const noexcept {
  return impl_->recordings.size();
}

std::string CapturedStep::explain() const {
  if (!impl_->eager_reason.empty()) return "The step is not captured: " + impl_->eager_reason + "\n";
  std::string text;
  for (const auto& each : impl_->recordings) {
    text += fmt::format(
        "Recording {} ({}): recorded {}, replayed {}, {}{}.\n", each->number, each->reason,
        graph_names::counted(static_cast<std::size_t>(each->attempts), "time"),
        graph_names::counted(each->replays, "time"),
        each->verified == 0 ? "" : fmt::format("verified {}, ", graph_names::counted(each->verified, "time")),
        each->program == nullptr ? "no graph yet" : graph_names::counted(each->graph().nodes.size(), "node"));
    if (each->not_verified > 0) {
      text +=
          fmt::format("  Not verified {}: other gradients were there when the call began than when it was recorded.\n",
                      graph_names::counted(each->not_verified, "time"));
    }
    if (!each->last_refusal.empty()) text += fmt::format("  The last recording failed. {}\n", each->last_refusal);
    if (each->graph_replayer) text += fmt::format("  {}\n", each->graph_replayer->explain());
    if (!each->replayer && !each->last_difference.empty()) {
      text += fmt::format("  Not replayed yet: two recordings in a row differ. {}\n", each->last_difference);
    }
    for (const auto& pass : each->passes) text += fmt::format("  {}: {}.\n", pass.name, pass.text);
    if (each->replayer) text += "  " + recording::memory_text(*each->program) + '\n';
  }
  if (impl_->dropped > 0) {
    text += fmt::format("{} more {} dropped: max_recordings is {}.\n", impl_->dropped,
                        impl_->dropped == 1 ? "was" : "were", impl_->options.max_recordings);
  }
  return text.empty() ? "The step has not been called yet.\n" : text;
}

}  // namespace cohort::detail

// SPDX-License-Identifier: BSD-3-Clause
//
// What libtorch's optimizers and those of cohort::optim keep, by name: their options and the state of a parameter. Each
// class has some of the fields.
#pragma once

#include <torch/optim/optimizer.h>

#include <concepts>
#include <type_traits>

namespace cohort {

/// Calls `visit` with the name and the value of each option.
template <class Options, class Visit>
void each_field(Options& options, Visit&& visit)
  requires std::derived_from<std::remove_const_t<Options>, torch::optim::OptimizerOptions>
{
  visit("lr", options.lr());
  if constexpr (requires { options.momentum(); }) visit("momentum", options.momentum());
  if constexpr (requires { options.dampening(); }) visit("dampening", options.dampening());
  if constexpr (requires { options.weight_decay(); }) visit("weight_decay", options.weight_decay());
  if constexpr (requires { options.nesterov(); }) visit("nesterov", options.nesterov());
  if constexpr (requires { options.betas(); }) visit("betas", options.betas());
  if constexpr (requires { options.eps(); }) visit("eps", options.eps());
  if constexpr (requires { options.amsgrad(); }) visit("amsgrad", options.amsgrad());
  if constexpr (requires { options.lr_decay(); }) visit("lr_decay", options.lr_decay());
  if constexpr (requires { options.initial_accumulator_value(); }) {
    visit("initial_accumulator_value", options.initial_accumulator_value());
  }
  if constexpr (requires { options.alpha(); }) visit("alpha", options.alpha());
  if constexpr (requires { options.centered(); }) visit("centered", options.centered());
  if constexpr (requires { options.rho(); }) visit("rho", options.rho());
  if constexpr (requires { options.eta_minus(); }) visit("eta_minus", options.eta_minus());
  if constexpr (requires { options.eta_plus(); }) visit("eta_plus", options.eta_plus());
  if constexpr (requires { options.step_min(); }) visit("step_min", options.step_min());
  if constexpr (requires { options.step_max(); }) visit("step_max", options.step_max());
  if constexpr (requires { options.max_iter(); }) visit("max_iter", options.max_iter());
  if constexpr (requires { options.max_eval(); }) visit("max_eval", options.max_eval());
  if constexpr (requires { options.tolerance_grad(); }) visit("tolerance_grad", options.tolerance_grad());
  if constexpr (requires { options.tolerance_change(); }) visit("tolerance_change", options.tolerance_change());
  if constexpr (requires { options.history_size(); }) visit("history_size", options.history_size());
  if constexpr (requires { options.line_search_fn(); }) visit("line_search_fn", options.line_search_fn());
}

/// The same for a parameter's state.
template <class State, class Visit>
void each_field(State& state, Visit&& visit)
  requires std::derived_from<std::remove_const_t<State>, torch::optim::OptimizerParamState>
{
  if constexpr (requires { state.step(); }) visit("step", state.step());
  if constexpr (requires { state.momentum_buffer(); }) visit("momentum_buffer", state.momentum_buffer());
  if constexpr (requires { state.exp_avg(); }) visit("exp_avg", state.exp_avg());
  if constexpr (requires { state.exp_avg_sq(); }) visit("exp_avg_sq", state.exp_avg_sq());
  if constexpr (requires { state.max_exp_avg_sq(); }) visit("max_exp_avg_sq", state.max_exp_avg_sq());
  if constexpr (requires { state.sum(); }) visit("sum", state.sum());
  if constexpr (requires { state.square_avg(); }) visit("square_avg", state.square_avg());
  if constexpr (requires { state.grad_avg(); }) visit("grad_avg", state.grad_avg());
  if constexpr (requires { state.acc_delta(); }) visit("acc_delta", state.acc_delta());
  if constexpr (requires { state.exp_inf(); }) visit("exp_inf", state.exp_inf());
  if constexpr (requires { state.prev(); }) visit("prev", state.prev());
  if constexpr (requires { state.step_size(); }) visit("step_size", state.step_size());
  if constexpr (requires { state.func_evals(); }) visit("func_evals", state.func_evals());
  if constexpr (requires { state.n_iter(); }) visit("n_iter", state.n_iter());
  if constexpr (requires { state.t(); }) visit("t", state.t());
  if constexpr (requires { state.prev_loss(); }) visit("prev_loss", state.prev_loss());
  if constexpr (requires { state.d(); }) visit("d", state.d());
  if constexpr (requires { state.H_diag(); }) visit("H_diag", state.H_diag());
  if constexpr (requires { state.prev_flat_grad(); }) visit("prev_flat_grad", state.prev_flat_grad());
  if constexpr (requires { state.old_dirs(); }) visit("old_dirs", state.old_dirs());
  if constexpr (requires { state.old_stps(); }) visit("old_stps", state.old_stps());
  if constexpr (requires { state.ro(); }) visit("ro", state.ro());
  if constexpr (requires { state.al(); }) visit("al", state.al());
}

}  // namespace cohort

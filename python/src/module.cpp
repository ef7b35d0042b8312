// SPDX-License-Identifier: BSD-3-Clause
//
// The extension module behind cohort.torch: groups are made here, everything else goes through torch.distributed.
#include <cohort/env.h>
#include <cohort/launch.h>
#include <cohort/new_group.h>
#include <cohort/rendezvous.h>
#include <cohort/torch/c10d.h>
#include <cohort/torch/tensor.h>
#include <pybind11/chrono.h>
#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>

#include <chrono>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "errors.h"
#include "group_memory.h"
#include "torch/compat/features.h"

namespace {

namespace py = pybind11;
using cohort::C10dBackend;
using std::chrono::milliseconds;

/// The same group. Its last owner may be an object of Python, whose lock must not be held while the group waits for its
/// operations: their callbacks may need it.
cohort::ProcessGroupPtr released_without_the_lock(cohort::ProcessGroupPtr group) {
  auto* const pointer = group.get();
  return {pointer, [owner = std::move(group)](cohort::ProcessGroup* /*same*/) mutable {
            if (PyGILState_Check() != 0) {
              const py::gil_scoped_release release;
              owner.reset();
            }
            owner.reset();
          }};
}

c10::intrusive_ptr<C10dBackend> make_backend(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                                             milliseconds timeout, const std::string& backend,
                                             const std::map<std::string, std::string>& options, bool group_memory) {
  cohort::Options ours;
  for (const auto& [key, value] : options) ours.set(key, value);
  auto group = cohort::new_group(backend, timeout, cohort::Device(cohort::DeviceType::cpu), ours,
                                 {.store = cohort::from_c10d(store), .rank = rank, .size = size});
  return cohort::to_c10d(std::move(group), {.group_memory = group_memory, .hold = &released_without_the_lock});
}

cohort::ProcessGroupPtr group_of(const C10dBackend& backend) {
  auto group = cohort::group_behind(backend);
  if (group == nullptr) throw py::value_error("this is not a group of backend cohort");
  return group;
}

std::tuple<c10::intrusive_ptr<c10d::Store>, int, int> rendezvous(milliseconds timeout) {
  const auto found = cohort::rendezvous("env://", {.timeout = timeout});
  return {cohort::to_c10d(found.store), found.rank, found.size};
}

/// The launcher that started this process, or nothing.
py::object launcher() {
  const auto launch = cohort::find_launch(cohort::Env::read());
  if (!launch) return py::none();
  return py::str(std::string(to_string(launch->launcher)));
}

}  // namespace

PYBIND11_MODULE(_torch, module) {
  using namespace py::literals;
  py::module_::import("torch");  // its types
  module.def("set_error_classes", &cohort::python::set_error_classes, "classes"_a);
  module.def("make_backend", &make_backend, "store"_a, "rank"_a, "size"_a, "timeout"_a, "backend"_a, "options"_a,
             "group_memory"_a, py::call_guard<py::gil_scoped_release>());
  module.def("is_cohort", [](const C10dBackend& backend) { return cohort::group_behind(backend) != nullptr; });
  module.def("engine", [](const C10dBackend& backend) { return group_of(backend)->name(); });
  module.def("wants_group_memory", &cohort::wants_group_memory);
  module.def(
      "empty_like",
      [](const C10dBackend& backend, const std::vector<std::int64_t>& sizes, const at::Tensor& like) {
        return cohort::empty_in_group(*group_of(backend), sizes, like.options());
      },
      "backend"_a, "sizes"_a, "like"_a, py::call_guard<py::gil_scoped_release>());
#if !COHORT_TORCH_HAS_C10D_BACKEND
  module.def("allocate_tensors_in",
             [](const C10dBackend& backend) { cohort::python::allocate_tensors_in(group_of(backend)); });
  module.def("allocate_tensors_ordinarily", [] { cohort::python::allocate_tensors_in(nullptr); });
#endif
  module.def("prepare_for_exit", &cohort::prepare_c10d_for_exit, "timeout"_a, py::call_guard<py::gil_scoped_release>());
  module.def("rendezvous", &rendezvous, "timeout"_a, py::call_guard<py::gil_scoped_release>());
  module.def("launcher", &launcher);
}

// SPDX-License-Identifier: BSD-3-Clause
#include "errors.h"

#include <cohort/error.h>

#include <exception>
#include <string>

namespace cohort::python {

namespace {

namespace py = pybind11;

/// cohort.errors.OF_KIND. Owned, and never released: the interpreter may be gone when the process ends.
py::handle classes_by_kind;

py::object class_of(const Error& error) {
  const bool is_of_store = dynamic_cast<const StoreTimeoutError*>(&error) != nullptr;
  const auto kind = is_of_store ? std::string("store_timeout") : std::string(to_string(error.kind()));
  return classes_by_kind[py::str(kind)];
}

void raise(const Error& error) {
  const auto type = class_of(error);
  const auto exception = type(error.what());
  const auto& context = error.context();
  exception.attr("group") = context.group;
  exception.attr("op") = context.op;
  if (context.sequence) exception.attr("sequence") = *context.sequence;
  if (context.rank) exception.attr("rank") = *context.rank;
  PyErr_SetObject(type.ptr(), exception.ptr());
}

void translate(std::exception_ptr thrown) {
  try {
    if (thrown) std::rethrow_exception(thrown);
  } catch (const Error& error) {
    raise(error);
  }
}

}  // namespace

void set_error_classes(const py::dict& classes) {
  const bool is_first = !classes_by_kind;
  classes_by_kind = py::dict(classes).release();
  if (is_first) py::register_exception_translator(&translate);
}

}  // namespace cohort::python

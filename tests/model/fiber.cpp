// SPDX-License-Identifier: BSD-3-Clause
#include "model/fiber.h"

#include <stdexcept>

#if defined(__SANITIZE_ADDRESS__)
#define COHORT_MODEL_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define COHORT_MODEL_ASAN 1
#endif
#endif

#ifdef COHORT_MODEL_ASAN
#include <sanitizer/common_interface_defs.h>
#endif

namespace cohort::model {

namespace {

#ifdef COHORT_MODEL_ASAN
void begin_switch(void** fake_stack, const void* bottom, std::size_t bytes) {
  __sanitizer_start_switch_fiber(fake_stack, bottom, bytes);
}
void end_switch(void* fake_stack, const void** left_bottom, std::size_t* left_bytes) {
  __sanitizer_finish_switch_fiber(fake_stack, left_bottom, left_bytes);
}
#else
void begin_switch(void**, const void*, std::size_t) {}
void end_switch(void*, const void**, std::size_t*) {}
#endif

// The two ends of the switch in progress: makecontext passes only ints to the function it starts.
thread_local Fiber* leaving = nullptr;
thread_local Fiber* entering = nullptr;

}  // namespace

Fiber::Fiber(std::size_t bytes) : stack_(bytes), stack_bottom_(stack_.data()), stack_bytes_(bytes) {
  if (getcontext(&context_) != 0) throw std::runtime_error("getcontext failed");
  context_.uc_stack.ss_sp = stack_.data();
  context_.uc_stack.ss_size = bytes;
  context_.uc_link = nullptr;
  makecontext(&context_, &Fiber::enter, 0);
}

void Fiber::enter() {
  Fiber& self = *entering;
  self.arrived();
  self.run();
}

void Fiber::run() {
  for (;;) {
    Fiber& next = job_();
    switch_to(next);
  }
}

void Fiber::switch_to(Fiber& next) {
  leaving = this;
  entering = &next;
  begin_switch(&fake_stack_, next.stack_bottom_, next.stack_bytes_);
  swapcontext(&context_, &next.context_);
  arrived();
}

void Fiber::arrived() {
  // The bounds of the stack that was just left; this is how those of the operating-system thread's own stack become
  // known.
  end_switch(fake_stack_, &leaving->stack_bottom_, &leaving->stack_bytes_);
}

}  // namespace cohort::model

// SPDX-License-Identifier: BSD-3-Clause
//
// The names that examples in headers and pages use without declaring them. They are declared here, never defined: the
// examples are compiled, not run.
#pragma once

#include <cohort/backend.h>
#include <cohort/cohort.h>
#include <cohort/env.h>
#include <cohort/launch.h>
#include <cohort/secret.h>

#include <cassert>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <fstream>
#include <iostream>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <vector>

using namespace std::chrono_literals;

// A job: this rank of so many, its group and its store.
extern const int rank, world_size, r, n, next, previous;
extern cohort::ProcessGroupPtr pg, group;
extern cohort::StorePtr store;
extern std::string my_host_name;
extern cohort::Deadline deadline;
extern cohort::Secret secret;
extern cohort::ProcessGroupFactory factory;

// Memory: what is sent and received.
extern std::vector<float> x, y, a, b, c, mine, everything, left, right, gradients;
extern std::size_t bytes;
extern std::span<std::byte> memory;
void use(const cohort::GroupMemory& memory);
extern float* pointer;
extern std::int64_t rows, cols;
extern std::shared_ptr<void> owner;
/// As dlpack.h has it.
struct DLManagedTensor {
  struct {
    void* data;
    struct {
      int device_type, device_id;
    } device;
    int ndim;
    struct {
      std::uint8_t code, bits;
      std::uint16_t lanes;
    } dtype;
    std::int64_t *shape, *strides;
    std::uint64_t byte_offset;
  } dl_tensor;
  void* manager_ctx;
  void (*deleter)(DLManagedTensor*);
};
extern DLManagedTensor* managed;

// What a program does besides.
void compute();
void train_step(cohort::ProcessGroup& group);
extern std::int64_t step;
void connect(cohort::Deadline deadline);
void read(cohort::Deadline deadline);
void retry();
int shard(int rank);
void load(int shard);
void upload(int rank, std::string_view dump);
double norm_of(const std::vector<cohort::Buffer>& buffers);

/// A type of the user's own, for BufferTraits.
struct Image {
  std::uint8_t* pixels;
  std::int64_t height, width;
};

// A backend, and the circumstances of an operation.
extern cohort::BackendPtr backend;
extern cohort::Call call;
extern const int root;

/// An operation of a stream-ordered backend that is under way.
struct Pending : cohort::Completion {
  explicit Pending(std::shared_ptr<cohort::CompletionHandler> handler);
  bool is_done() override;
  void order(void* stream) override;
  bool wait(cohort::Deadline deadline) override;
};
void launch(const cohort::Operation& op, void* stream, Pending& pending);

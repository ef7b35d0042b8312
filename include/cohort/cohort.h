// SPDX-License-Identifier: BSD-3-Clause
//
// Includes what programs that use process groups need. Other headers are included by name: store servers and job
// startup (store_server.h, secret.h, launch.h, rendezvous.h, env.h, endpoint.h), collectives over a store
// (store_collectives.h), and the interface for writing a backend (backend.h, completion.h, operation.h). The headers
// for libtorch are in cohort/torch.
#pragma once

#include <cohort/buffer.h>
#include <cohort/capabilities.h>
#include <cohort/current_group.h>
#include <cohort/deadline.h>
#include <cohort/debug_level.h>
#include <cohort/device.h>
#include <cohort/dtype.h>
#include <cohort/error.h>
#include <cohort/file_store.h>
#include <cohort/flight_recorder.h>
#include <cohort/future.h>
#include <cohort/group_registry.h>
#include <cohort/hash_store.h>
#include <cohort/issue_observer.h>
#include <cohort/log.h>
#include <cohort/memory.h>
#include <cohort/new_group.h>
#include <cohort/op_type.h>
#include <cohort/operations.h>
#include <cohort/options.h>
#include <cohort/prefix_store.h>
#include <cohort/process_group.h>
#include <cohort/reduce_op.h>
#include <cohort/reduction.h>
#include <cohort/store.h>
#include <cohort/tcp_store.h>
#include <cohort/timeout.h>
#include <cohort/version.h>
#include <cohort/work.h>

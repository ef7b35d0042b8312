// SPDX-License-Identifier: BSD-3-Clause
//
// All of Cohort that needs no libtorch.
#pragma once

#include <cohort/backend.h>
#include <cohort/buffer.h>
#include <cohort/completion.h>
#include <cohort/current_group.h>
#include <cohort/deadline.h>
#include <cohort/debug_level.h>
#include <cohort/device.h>
#include <cohort/dtype.h>
#include <cohort/endpoint.h>
#include <cohort/env.h>
#include <cohort/error.h>
#include <cohort/file_store.h>
#include <cohort/flight_recorder.h>
#include <cohort/future.h>
#include <cohort/group_registry.h>
#include <cohort/hash_store.h>
#include <cohort/launch.h>
#include <cohort/log.h>
#include <cohort/memory.h>
#include <cohort/new_group.h>
#include <cohort/op_type.h>
#include <cohort/operations.h>
#include <cohort/options.h>
#include <cohort/prefix_store.h>
#include <cohort/process_group.h>
#include <cohort/reduce_op.h>
#include <cohort/rendezvous.h>
#include <cohort/secret.h>
#include <cohort/store.h>
#include <cohort/store_collectives.h>
#include <cohort/store_server.h>
#include <cohort/tcp_store.h>
#include <cohort/version.h>
#include <cohort/work.h>

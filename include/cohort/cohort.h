// SPDX-License-Identifier: BSD-3-Clause
//
// All of Cohort that needs no libtorch.
#pragma once

#include <cohort/buffer.h>
#include <cohort/deadline.h>
#include <cohort/device.h>
#include <cohort/dtype.h>
#include <cohort/endpoint.h>
#include <cohort/env.h>
#include <cohort/error.h>
#include <cohort/file_store.h>
#include <cohort/hash_store.h>
#include <cohort/launch.h>
#include <cohort/log.h>
#include <cohort/options.h>
#include <cohort/prefix_store.h>
#include <cohort/rendezvous.h>
#include <cohort/secret.h>
#include <cohort/store.h>
#include <cohort/store_collectives.h>
#include <cohort/store_server.h>
#include <cohort/tcp_store.h>
#include <cohort/version.h>

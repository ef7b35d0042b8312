// SPDX-License-Identifier: BSD-3-Clause
#include "backends/common/failure.h"

namespace cohort {

void throw_failure(const Failure& failure, ErrorContext context) {
  if (failure.rank >= 0) context.rank = failure.rank;
  switch (failure.kind) {
    case ErrorKind::timeout:
      throw OperationTimeoutError(failure.text, std::move(context));
    case ErrorKind::peer_lost:
      throw PeerLostError(failure.text, std::move(context));
    case ErrorKind::mismatch:
      throw MismatchError(failure.text, std::move(context));
    case ErrorKind::aborted:
      throw AbortedError(failure.text, std::move(context));
    default:
      throw BackendError(failure.text, std::move(context));
  }
}

}  // namespace cohort

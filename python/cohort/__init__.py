# SPDX-License-Identifier: BSD-3-Clause
"""Cohort for Python.

``import cohort.torch`` makes the backend "cohort" known to ``torch.distributed``. This package itself holds the
exceptions that it raises.
"""
from cohort._version import __version__
from cohort.errors import (
    AbortedError,
    BackendError,
    DistributedError,
    Error,
    MismatchError,
    NetworkError,
    NotSupportedError,
    OperationTimeoutError,
    PeerLostError,
    StoreError,
    StoreTimeoutError,
)

__all__ = [
    "AbortedError",
    "BackendError",
    "DistributedError",
    "Error",
    "MismatchError",
    "NetworkError",
    "NotSupportedError",
    "OperationTimeoutError",
    "PeerLostError",
    "StoreError",
    "StoreTimeoutError",
    "__version__",
]

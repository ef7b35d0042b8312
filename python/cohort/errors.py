# SPDX-License-Identifier: BSD-3-Clause
"""The exceptions of the library (cohort/error.h), as classes of Python.

    try:
        dist.all_reduce(x)
    except cohort.PeerLostError as e:
        print(e.rank, "has died;", e)

All of them are RuntimeErrors, as those of torch.distributed are.
"""
import builtins


class Error(RuntimeError):
    """The base of all. ``str(e)`` says what happened, to which operation of which group, and which rank is at fault."""

    group = ""  #: the id of the group
    op = ""  #: "all_reduce", "store.get", ...
    sequence = None  #: the number of the operation in its group
    rank = None  #: the rank at fault, numbered within the group


class ArgumentValueError(Error, builtins.ValueError):
    """An argument is out of range, malformed or missing."""


class ArgumentTypeError(Error, builtins.TypeError):
    """An argument has the wrong type."""


class ArgumentKeyError(Error, builtins.KeyError):
    """An option or key is unknown."""

    __str__ = Error.__str__  # KeyError's shows the text in quotes


class NotSupportedError(Error, builtins.NotImplementedError):
    """The backend or store lacks the operation."""


class DistributedError(Error):
    """The base of the errors that have to do with other ranks."""


class BackendError(DistributedError):
    """A backend failed."""


class OperationTimeoutError(BackendError, builtins.TimeoutError):
    """An operation missed its deadline."""

    __str__ = Error.__str__  # TimeoutError's shows an errno


class PeerLostError(BackendError):
    """A rank has died or cannot be reached: ``rank``."""


class MismatchError(BackendError):
    """The ranks made different calls."""


class AbortedError(BackendError):
    """The group was aborted."""


class StoreError(DistributedError):
    """The store refused or failed an operation."""


class StoreTimeoutError(StoreError, builtins.TimeoutError):
    """A key did not arrive in time."""

    __str__ = Error.__str__


class NetworkError(DistributedError):
    """A connection failed or was refused."""


#: The class for each kind of cohort::Error. An error of a store that timed out has a class of its own.
OF_KIND = {
    "error": Error,
    "value": ArgumentValueError,
    "type": ArgumentTypeError,
    "key": ArgumentKeyError,
    "index": Error,
    "assertion": Error,
    "not_supported": NotSupportedError,
    "distributed": DistributedError,
    "backend": BackendError,
    "timeout": OperationTimeoutError,
    "store_timeout": StoreTimeoutError,
    "peer_lost": PeerLostError,
    "mismatch": MismatchError,
    "aborted": AbortedError,
    "store": StoreError,
    "queue_empty": StoreError,
    "network": NetworkError,
    "socket": NetworkError,
}

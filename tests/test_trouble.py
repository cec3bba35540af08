from __future__ import annotations

import errno
import gzip
import json
import os

import numpy as np
import pytest
import torch

from tilewise.errors import BudgetError, LockedError, MissingStoreError, StoreAccessError, StoreFullError
from tilewise.trouble import Trouble, fullness_told, trouble_of


def raised(call: object) -> BaseException:
    try:
        call()  # type: ignore[operator]
    except (RuntimeError, MemoryError, ValueError) as error:
        return error
    raise AssertionError("nothing was raised")


def system(number: int) -> OSError:
    return OSError(number, os.strerror(number))


def behind(outer: Exception, inner: Exception) -> Exception:
    outer.__cause__ = inner
    return outer


PASSING = (ConnectionResetError(), TimeoutError(), system(errno.EIO), system(errno.ESTALE), StoreAccessError("away"))
LASTING = (
    FileNotFoundError(),
    PermissionError(),
    system(errno.EROFS),
    MissingStoreError("gone"),
    behind(StoreAccessError("denied"), PermissionError("403")),
)
FULL = (system(errno.ENOSPC), system(errno.EDQUOT), StoreAccessError("s3", got="ClientError: QuotaExceeded"))


@pytest.mark.parametrize("error", PASSING, ids=repr)
def test_a_store_that_does_not_answer_may_answer_the_next_time(error: Exception) -> None:
    assert trouble_of(error, "read") is trouble_of(error, "write") is Trouble.PASSING
    assert trouble_of(error, "compute") is Trouble.LASTING


@pytest.mark.parametrize("error", LASTING, ids=repr)
def test_what_is_not_there_or_denied_stays_so(error: Exception) -> None:
    assert trouble_of(error, "read") is trouble_of(error, "write") is Trouble.LASTING


@pytest.mark.parametrize("error", FULL, ids=repr)
def test_a_full_store_is_one_only_while_writing(error: Exception) -> None:
    assert trouble_of(error, "write") is Trouble.FULL
    assert trouble_of(behind(StoreAccessError("out"), error), "write") is Trouble.FULL
    assert trouble_of(error, "read") is Trouble.PASSING


@pytest.mark.parametrize("doing", ["read", "compute", "write"])
def test_memory_that_is_short_is_known_whoever_says_so(doing: str) -> None:
    for error in (
        raised(lambda: torch.empty(2**60, dtype=torch.uint8)),
        raised(lambda: np.empty(2**60, dtype="u1")),
        MemoryError(),
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB"),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
        behind(ValueError("while decoding"), MemoryError()),
        system(errno.ENOMEM),
    ):
        assert trouble_of(error, doing) is Trouble.MEMORY, error  # type: ignore[arg-type]


def test_a_budget_and_what_was_merely_being_handled_are_no_lack_of_memory() -> None:
    assert trouble_of(BudgetError("too large"), "compute") is Trouble.LASTING
    error = ArithmeticError("later")
    error.__context__ = MemoryError()
    assert trouble_of(error, "compute") is Trouble.LASTING


def test_what_a_codec_raises_is_damage_only_while_reading() -> None:
    for error in (ValueError("bad checksum"), RuntimeError("Zstd"), EOFError(), gzip.BadGzipFile("not gzipped")):
        assert trouble_of(error, "read") is Trouble.UNREADABLE
    assert trouble_of(raised(lambda: json.loads("{")), "write") is Trouble.UNREADABLE  # metadata, or a lock
    assert trouble_of(ValueError("shape"), "write") is Trouble.LASTING


def test_a_lock_that_is_lost_is_lost_whatever_is_done() -> None:
    assert trouble_of(LockedError("taken"), "write") is Trouble.LOST


def test_a_full_store_is_told_by_name_and_nothing_else_is() -> None:
    with pytest.raises(StoreFullError, match="no space is left for the ledger"), fullness_told("the ledger"):
        raise system(errno.ENOSPC)
    with pytest.raises(OSError, match="error"), fullness_told("the ledger"):
        raise system(errno.EIO)
    full = StoreFullError("the bucket is full")
    with pytest.raises(StoreFullError) as found, fullness_told("the ledger"):
        raise full
    assert found.value is full

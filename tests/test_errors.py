from __future__ import annotations

import pickle

import pytest

from tilewise import errors

CLASSES = [cls for cls in vars(errors).values() if isinstance(cls, type) and issubclass(cls, errors.TilewiseError)]


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_every_error_survives_the_trip_from_a_worker(cls: type[errors.TilewiseError]) -> None:
    error = cls("what", got=3, expected="4", do="count again")
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is cls
    assert str(copy) == str(error) == "what; got: 3; expected: 4. To mend it: count again."


@pytest.mark.parametrize("cls", [c for c in CLASSES if c is not errors.TilewiseError], ids=lambda cls: cls.__name__)
def test_every_error_is_also_a_builtin_one(cls: type[errors.TilewiseError]) -> None:
    builtins = [base for base in cls.__mro__ if base.__module__ == "builtins" and base not in (Exception, object)]
    assert any(base is not BaseException for base in builtins)

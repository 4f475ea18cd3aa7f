"""Which requests of a relay are alike in all but their content: the same parameters, for the same tenant.

Any thread may use this. The invariant: two requests are alike exactly if they have the same `Identity` object, and
whoever holds one keeps it: as long as it lives no other stands for the same, and nothing else has its number.
"""

from __future__ import annotations

import itertools
import sys
import threading
import weakref
from collections.abc import Iterable
from typing import Any

from relay.fork import survivors
from relay.identity import Params, intern_params


class Identity:
    """Whatever else than the content makes two requests the same; equal ones are one object while anybody holds it.

    Attributes:
        number: From 1 to 2**63 - 1, and no other living `Identity` of the process has it.
        nbytes: What it keeps alive, in bytes: parameters and tenant.
    """

    __slots__ = ("__weakref__", "nbytes", "number")

    def __init__(self, number: int, nbytes: int) -> None:
        self.number = number
        self.nbytes = nbytes


_numbers = itertools.count(1)  # 63 bits of them last for ever


class Identities:
    """The identities of one relay's requests. Nothing is kept of those that nobody holds.

    Args:
        share_ignore: Parameters that may differ without making two requests different. All others count, known or not.
        share_across_tenants: Requests of different tenants may be the same.

    Raises:
        TypeError: `share_ignore` is one name, or has something that is none.
    """

    __slots__ = ("__weakref__", "_across", "_ignored", "_living", "_lock")

    def __init__(self, share_ignore: Iterable[str] = (), share_across_tenants: bool = False) -> None:
        self._ignored = frozenset(as_share_ignore(share_ignore))
        self._across = share_across_tenants
        self._living: weakref.WeakValueDictionary[Any, Identity] = weakref.WeakValueDictionary()
        self._after_fork_in_child()
        survivors.add(self)

    def _after_fork_in_child(self) -> None:
        self._lock = threading.RLock()  # for a finaliser may come here while this thread makes one

    def __len__(self) -> int:
        """How many somebody holds."""
        return len(self._living)

    def of(self, params: Params | None, tenant: str | None) -> Identity | None:
        """What must be the same object for two requests to be alike; None for neither parameters nor tenant.

        Args:
            params: As `intern_params` gave them.
            tenant: Whom the request is for; compared as text, case and all.

        Raises:
            TypeError: The tenant is not a str.
        """
        if self._across:
            tenant = None
        if params is not None and not self._ignored.isdisjoint(params.keywords):
            params = intern_params({name: each for name, each in params.keywords.items() if name not in self._ignored})
        if tenant is None:
            if params is None:
                return None
            key: object = params
        else:
            if type(tenant) is not str:
                tenant = _tenant(tenant)
            key = tenant if params is None else (params, tenant)
        known = self._living.get(key)
        if known is None:
            new = Identity(next(_numbers), _bytes_of(params, tenant))
            with self._lock:  # `setdefault` alone would let two threads both put theirs
                known = self._living.setdefault(key, new)
        return known


_BYTES = 400  # of an identity, the entry it is found by, and the objects of its parameters


def _bytes_of(params: Params | None, tenant: str | None) -> int:
    nbytes = _BYTES + (0 if tenant is None else sys.getsizeof(tenant))
    if params is not None:
        for name, value in params.keywords.items():
            nbytes += 2 * sys.getsizeof(name) + 2 * _size(value, 8)  # as given, and as it is compared
    return nbytes


def _size(value: Any, depth: int) -> int:
    nbytes = sys.getsizeof(value, 64)
    if depth and type(value) in (tuple, frozenset):
        nbytes += sum(_size(part, depth - 1) for part in value)
    return nbytes


def _tenant(tenant: object) -> str:
    if not isinstance(tenant, str):
        raise TypeError(f"tenant must be a str, got {type(tenant).__name__}; name it by text, such as str(number)")
    return str.__str__(tenant)


def as_share_ignore(share_ignore: Iterable[str]) -> tuple[str, ...]:
    """The names of parameters that may differ between requests that share a result.

    Raises:
        TypeError: It is one name, or has something that is none.
    """
    if isinstance(share_ignore, str) or not isinstance(share_ignore, Iterable):
        raise TypeError(f"share_ignore must be a sequence of names, such as ('user',), got {share_ignore!r}")
    names = tuple(share_ignore)
    for name in names:
        if not isinstance(name, str):
            raise TypeError(f"share_ignore must be a sequence of names, such as ('user',), got {name!r} in it")
    return tuple(map(str.__str__, names))

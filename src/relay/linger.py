"""Linger: how long a free lane waits for more. `relay._pure.linger` says how."""

from __future__ import annotations

from relay._backend import linger

Linger = linger.Linger

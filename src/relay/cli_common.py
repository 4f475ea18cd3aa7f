"""What the commands share: the error that ends one, argument types, and the process and model set up for work."""

from __future__ import annotations

import argparse
import sys

from relay import models
from relay.tuning import SWITCH_INTERVAL_S


class CommandFailed(Exception):
    """A command ends early; the text, one line or more, says why and what to do.

    Args:
        text: The text.
        code: The exit code.
    """

    def __init__(self, text: str, code: int = 1) -> None:
        super().__init__(text)
        self.code = code


def positive(text: str) -> int:
    """An argparse type: a whole number of at least 1."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, got {value}")
    return value


def count(text: str) -> int:
    """An argparse type: a whole number of at least 0."""
    value = int(text)
    if value < 0:
        raise argparse.ArgumentTypeError(f"must be at least 0, got {value}")
    return value


def load_embedder(name: str, threads: int) -> tuple[models.Encoder, int]:
    """Sets the process up to run a model beside Python threads, and loads one that embeds.

    Only the commands do this; the library leaves the switch interval and torch's threads to the program it is part of.

    Args:
        name: A model's name, or the folder it lies in.
        threads: Threads for the model.

    Returns:
        The model, and the length of its vectors.

    Raises:
        CommandFailed: The model does something else.
        LoadFailed: It cannot be loaded.
    """
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    model = models.load(name, threads=threads)
    if model.task != "embed" or model.dimensions is None:
        raise CommandFailed(f"{name} is a model to {model.task}, not to embed; give the folder of an embedding model")
    return model, model.dimensions

"""Two sides, one interface: every part has the same public names, parameters and defaults in `_pure` and in `_core`."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
from collections.abc import Coroutine
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import relay._core
import relay._pure

Parameters = list[tuple[str, str, object]]

# Special methods that callers reach through an operator or a builtin; what else a type defines is its own affair.
OPERATORS = {"__len__", "__contains__", "__iter__", "__next__", "__getitem__", "__setitem__", "__call__", "__bool__"}


def names_in(package: ModuleType) -> set[str]:
    """The parts that a side has, whether as source or built."""
    return {
        file.name.split(".")[0]
        for folder in package.__path__
        for file in Path(folder).iterdir()
        if file.suffix in {".py", ".pyx", ".so", ".pyd"} and not file.name.startswith("_")
    }


PARTS = sorted(names_in(relay._pure) | names_in(relay._core))


@pytest.fixture
def sides(part: str) -> tuple[ModuleType, ModuleType]:
    if find_spec(f"relay._core.{part}") is None:
        pytest.skip(f"no native build of {part}")
    return importlib.import_module(f"relay._pure.{part}"), importlib.import_module(f"relay._core.{part}")


def public(module: ModuleType) -> dict[str, Any]:
    """What a module offers: its `__all__`, or what it defines itself under a name without an underscore."""
    listed = getattr(module, "__all__", None)
    if listed is not None:
        return {name: getattr(module, name) for name in listed}
    own = {}
    for name, value in vars(module).items():
        if name.startswith("_") or inspect.ismodule(value):
            continue
        if (inspect.isclass(value) or callable(value)) and getattr(value, "__module__", None) != module.__name__:
            continue
        if type(value).__module__ == "__future__":
            continue
        own[name] = value
    return own


def members(cls: type) -> dict[str, Any]:
    """The methods, properties and constants of a class that its users see."""
    found = {name: value for base in reversed(cls.__mro__[:-1]) for name, value in vars(base).items()}
    return {name: value for name, value in found.items() if not name.startswith("_") or name in OPERATORS}


def parameters(value: Any) -> Parameters:
    """(name, kind, default) of each parameter but the bound one, from the signature, or from the line Cython embeds."""
    try:
        found = [(p.name, p.kind.name, p.default) for p in inspect.signature(value).parameters.values()]
    except (TypeError, ValueError):
        found = embedded(value)
    return [(name, kind, default) for name, kind, default in found if name not in ("self", "cls")]


def embedded(value: Any) -> Parameters:
    line = (value.__doc__ or "").split("\n")[0]
    match = re.search(r"\w\((.*)\)", line)
    assert match, f"{value!r} shows no signature: embedsignature=True; a class's docstring begins 'Name(...)\\n--\\n'"
    code = ast.parse(f"def f({re.sub(r'->.*', '', match[1])}): pass").body[0]
    assert isinstance(code, ast.FunctionDef)
    bare = ast.FunctionDef(name="f", args=code.args, body=[ast.Pass()], decorator_list=[])
    for argument in [*code.args.posonlyargs, *code.args.args, *code.args.kwonlyargs]:
        argument.annotation = None
    scope: dict[str, Any] = {}
    exec(compile(ast.fix_missing_locations(ast.Module([bare], [])), line, "exec"), scope)
    return [(p.name, p.kind.name, p.default) for p in inspect.signature(scope["f"]).parameters.values()]


def takes(cls: type, names: list[str]) -> bool:
    """Whether the constructor knows these keywords; the embedded line of a class is written by hand."""
    try:
        made = cls(**dict.fromkeys(names, object()))
        if isinstance(made, Coroutine):
            made.close()  # nobody will await it
    except TypeError as error:
        return "argument" not in str(error)
    except Exception:
        pass
    return True


def shows_none(cls: type) -> bool:
    """Whether a class cannot tell what its constructor takes, as one that is compiled from the pure side's source."""
    return cls.__text_signature__ is None and not (cls.__doc__ or "").startswith(f"{cls.__name__}(")


def is_data(value: Any) -> bool:
    """Properties, slots, getters, and fields whose default lies on the class: read without a call."""
    return inspect.isdatadescriptor(value) or value is None or isinstance(value, int)


def plain(value: Any) -> Any:
    return value.__func__ if isinstance(value, (staticmethod, classmethod)) else value


def test_no_part_exists_on_one_side_only() -> None:
    assert PARTS
    missing = {part for part in PARTS if find_spec(f"relay._pure.{part}") is None}
    assert not missing, f"no specification in relay/_pure: {sorted(missing)}"


@pytest.mark.parametrize("part", PARTS)
def test_the_right_files(sides: tuple[ModuleType, ModuleType]) -> None:
    pure, native = sides
    assert Path(pure.__file__ or "").suffix == ".py"
    assert Path(native.__file__ or "").suffix in {".so", ".pyd"}


@pytest.mark.parametrize("part", PARTS)
def test_names(sides: tuple[ModuleType, ModuleType]) -> None:
    pure, native = map(public, sides)
    assert sorted(pure) == sorted(native)


@pytest.mark.parametrize("part", PARTS)
def test_constants(sides: tuple[ModuleType, ModuleType]) -> None:
    pure, native = map(public, sides)
    for name in pure.keys() & native.keys():
        if not callable(pure[name]) and not hasattr(pure[name], "__dict__"):
            assert pure[name] == native[name], name


@pytest.mark.parametrize("part", PARTS)
def test_functions(sides: tuple[ModuleType, ModuleType]) -> None:
    pure, native = map(public, sides)
    for name in pure.keys() & native.keys():
        assert inspect.isclass(pure[name]) == inspect.isclass(native[name]), name
        assert callable(pure[name]) == callable(native[name]), name
        if callable(pure[name]) and not inspect.isclass(pure[name]):
            assert parameters(pure[name]) == parameters(native[name]), name


@pytest.mark.parametrize("part", PARTS)
def test_classes(sides: tuple[ModuleType, ModuleType]) -> None:
    pure, native = map(public, sides)
    for name in pure.keys() & native.keys():
        if not inspect.isclass(pure[name]):
            continue
        ours, theirs = members(pure[name]), members(native[name])
        assert sorted(ours) == sorted(theirs), name
        arguments = [parameter for parameter, _, _ in parameters(pure[name])]
        if shows_none(native[name]):
            needed = [parameter for parameter, _, default in parameters(pure[name]) if default is inspect._empty]
            assert takes(native[name], needed), name
        else:
            assert parameters(pure[name]) == parameters(native[name]), name
        assert takes(native[name], arguments) and not takes(native[name], [*arguments, "no_such_argument"]), name
        for member, value in ours.items():
            label = f"{name}.{member}"
            assert is_data(value) == is_data(theirs[member]), label
            assert type(value) is type(theirs[member]) or not isinstance(value, (staticmethod, classmethod)), label
            if callable(plain(value)) and member not in OPERATORS:
                assert parameters(plain(value)) == parameters(plain(theirs[member])), label

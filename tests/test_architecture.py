"""Imports point one way: from the command line down to the backbone, never up."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import sodap

ROOT = Path(sodap.__file__).parent

# A room may import from rooms of a lower floor, and from itself.
FLOORS = {
    "__main__": 9,
    "cli": 8,
    "reporting": 7,
    "grids": 6,
    "runs": 5,
    "testing": 5,
    "learning": 4,
    "methods": 3,
    "prompting": 2,
    "preserving": 2,
    "drift": 2,
    "balancing": 2,
    "backbones": 1,
    "streams": 1,
    "evaluation": 1,
    "storage": 0,
    "plugins": 0,
    "memory": 0,
    "randomness": 0,
    "freezing": 0,
    "recording": 0,
    "interruption": 0,
    "errors": -1,
    "formats": -1,
    "version": -1,
}


def room_of(path: Path) -> str:
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


def imported_rooms(path: Path) -> set[str]:
    modules: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            modules |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            assert node.level == 0, f"{path}: relative imports hide where things come from"
            modules.add(node.module)
            if node.module == "sodap":
                modules |= {f"sodap.{alias.name}" for alias in node.names}
    return {name.split(".")[1] for name in modules if name.startswith("sodap.")}


FILES = sorted(p for p in ROOT.rglob("*.py") if p != ROOT / "__init__.py")


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_imports_point_down(path: Path) -> None:
    room = room_of(path)
    assert room in FLOORS, f"{room} has no floor yet"
    for other in imported_rooms(path) & FLOORS.keys():
        assert other == room or FLOORS[other] < FLOORS[room], f"{room} must not import {other}"


def test_every_room_says_what_is_public() -> None:
    for init in ROOT.glob("*/__init__.py"):
        tree = ast.parse(init.read_text("utf-8"))
        names = [
            t.id
            for n in tree.body
            if isinstance(n, ast.Assign)
            for t in n.targets
            if isinstance(t, ast.Name)
        ]
        assert "__all__" in names, f"{init.parent.name} has no __all__"
        assert ast.get_docstring(tree), f"{init.parent.name} does not say what it is"


def test_public_names_exist() -> None:
    for name in sodap.__all__:
        assert getattr(sodap, name) is not None
        assert name in dir(sodap)

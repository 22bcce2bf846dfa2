"""Imports between packages point down, from the command line to the backbone."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import sodap

ROOT = Path(sodap.__file__).parent

# Packages and modules from the lowest layer to the highest. Each may import from itself and from
# lower layers, but not from others in its own layer.
LAYERS = [
    ["errors", "bars", "formats", "lazy", "version"],
    ["storage", "plugins", "allocator", "threads", "randomness", "freezing", "interruption"],
    ["streams", "backbones", "evaluation"],
    ["prompting", "preserving", "drift", "balancing"],
    ["methods"],
    ["execution"],
    ["learning", "probing"],
    ["runs", "testing"],
    ["grids"],
    ["reporting"],
    ["cli"],
    ["__main__"],
]
LAYER_OF = {package: number for number, layer in enumerate(LAYERS) for package in layer}


def package_of(path: Path) -> str:
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


def imported_packages(path: Path) -> set[str]:
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
    package = package_of(path)
    assert package in LAYER_OF, f"{package} is in no layer yet"
    for other in imported_packages(path) & LAYER_OF.keys():
        lower = LAYER_OF[other] < LAYER_OF[package]
        assert other == package or lower, f"{package} must not import {other}"


def test_every_layer_exists() -> None:
    assert {package_of(path) for path in FILES} == LAYER_OF.keys()


def test_every_package_has_a_docstring_and_a_list_of_public_names() -> None:
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
        assert ast.get_docstring(tree), f"{init.parent.name} has no docstring"


def test_public_names_exist() -> None:
    for name in sodap.__all__:
        assert getattr(sodap, name) is not None
        assert name in dir(sodap)

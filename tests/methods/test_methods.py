"""Every registered method keeps every promise, and other packages can add methods."""

from __future__ import annotations

import subprocess
import sys
import warnings
from collections.abc import Callable
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

import sodap.methods
import sodap.methods.registry as registry
from sodap.errors import SodapError
from sodap.learning import Learner
from sodap.methods import Method, build_method, find_method, method_names
from sodap.methods.sequential import Sequential
from sodap.plugins import BrokenPluginWarning, load_plugins
from sodap.randomness import Randomness
from sodap.testing import CHECKS, NEEDS_GPU, SLOW, Trial

# Smaller sizes that make no promise easier to keep.
SMALL: dict[str, dict[str, Any]] = {
    "moe-adapters": {"experts": 6, "selector_steps": 20},
    "online-ewc": {"fisher_images": 4},
    "ranpac": {"projection": 128},
    "rp-ridge": {"projection": 128},
}

# Options that change what a method does.
VARIANTS: list[tuple[str, dict[str, Any]]] = [
    ("der++", {"faithful": True}),
    ("ncm", {"distance": "euclid"}),
    ("online-ewc", {"faithful": True}),
    (
        "residual-sodap",
        {"per_layer": "all", "stats": "per_stage", "memory_write": "always", "capacity": None},
    ),
    ("residual-sodap", {"backprop": "cls_row"}),
    ("rp-ridge", {"features": "last4", "projection": 128}),
    ("slda", {"priors": "counts"}),
]

TRIALS = [
    pytest.param((name, options), id=label, marks=pytest.mark.xdist_group(label))
    for label, name, options in (
        *((name, name, SMALL.get(name, {})) for name in method_names()),
        *((f"{name} {next(iter(options))}", name, options) for name, options in VARIANTS),
    )
]


@pytest.fixture(scope="module", params=TRIALS)
def trial(request: pytest.FixtureRequest) -> Trial:
    """One method, trained once for all promises; the group keeps its tests in one process."""
    return Trial(*request.param)


def _promises() -> list[Any]:
    no_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")
    marks = {name: [pytest.mark.slow] for name in SLOW} | {name: [no_gpu] for name in NEEDS_GPU}
    return [pytest.param(name, marks=marks.get(name, [])) for name in CHECKS]


@pytest.mark.parametrize("promise", _promises())
def test_every_method_keeps(trial: Trial, promise: str) -> None:
    CHECKS[promise](trial)


def test_unknown_methods_and_options() -> None:
    with pytest.raises(SodapError, match=r"no method is called 'nothing'; .*residual-sodap"):
        find_method("nothing")
    backbone = Learner(["a", "b"]).method.backbone
    with pytest.raises(SodapError, match="option 'contxt' of residual-sodap"):
        build_method("residual-sodap", {"contxt": "cls"}, backbone, 2, Randomness(0))
    with pytest.raises(SodapError, match="option 'pool_size' of residual-sodap"):
        build_method("residual-sodap", {"pool_size": 0}, backbone, 2, Randomness(0))


def test_built_in_methods_are_where_the_registry_says() -> None:
    for name, place in registry.BUILT_IN.items():
        method = find_method(name)
        assert (method.name, f"{method.__module__}:{method.__name__}") == (name, place)
        assert getattr(sodap.methods, method.__name__) is method
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        _ = sodap.methods.Nothing


def test_names_are_known_without_torch() -> None:
    code = (
        "import sys\n"
        "from sodap import SodapError\n"
        "from sodap.methods import find_method, method_names\n"
        "assert 'ridge' in method_names()\n"
        "try: find_method('nothing')\n"
        "except SodapError: pass\n"
        "print('torch' in sys.modules, find_method('ridge').__name__, 'torch' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=300
    )
    assert done.stdout.split() == ["False", "Ridge", "True"]


# ------------------------------------------------------------------ other packages


class Foreign(Sequential):
    """A method of another package."""

    name = "foreign"


class Unfinished(Method):
    """It has no losses and no forward."""

    name = "unfinished"


class Second(Sequential):
    """A second method by a name that is taken."""

    name = "ridge"


Announce = Callable[[dict[str, object]], None]


@pytest.fixture
def announce(monkeypatch: pytest.MonkeyPatch) -> Announce:
    """Put things into a module `other_package` and announce them as methods; None is absent."""
    monkeypatch.setattr(registry, "_METHODS", dict(registry._METHODS))

    def install(things: dict[str, object]) -> None:
        module = ModuleType("other_package")
        vars(module).update({name: thing for name, thing in things.items() if thing is not None})
        monkeypatch.setitem(sys.modules, "other_package", module)
        found = EntryPoints(
            EntryPoint(name, f"other_package:{name}", registry.PLUGINS) for name in things
        )
        monkeypatch.setattr("sodap.plugins.entry_points", lambda group: found.select(group=group))
        load_plugins.cache_clear()

    return install


def test_another_package_adds_a_method(announce: Announce) -> None:
    announce({"METHOD": Foreign})
    assert "foreign" in method_names()
    assert find_method("foreign") is Foreign
    assert Learner(["a", "b"], method="foreign").method_name == "foreign"


def test_a_plugin_may_use_the_decorator_as_well(announce: Announce) -> None:
    registry.register_method(Foreign)
    announce({"METHOD": Foreign})
    assert find_method("foreign") is Foreign
    with pytest.raises(ValueError, match="'foreign' is registered already"):
        registry.register_method(type("Other", (Foreign,), {}))
    with pytest.raises(TypeError, match=r"Unfinished .*: define .*forward, losses \(or learns_by"):
        registry.register_method(Unfinished)
    with pytest.raises(TypeError, match=r"Silent .*: define name, stores"):
        registry.register_method(type("Silent", (Foreign,), {"stores": "", "name": ""}))


@pytest.mark.parametrize(
    ("thing", "reason"),
    [
        ("a string", "it is not a subclass of sodap.methods.Method"),
        (Learner, "it is not a subclass of sodap.methods.Method"),
        (Unfinished, "Unfinished is not a complete method"),
        (Second, "'ridge' is registered already"),
        (None, "module 'other_package' has no attribute 'odd'"),
    ],
)
def test_a_broken_plugin_is_named_and_left_out(
    announce: Announce, thing: object, reason: str
) -> None:
    known = method_names()
    announce({"odd": thing, "fine": Foreign})
    with pytest.warns(BrokenPluginWarning, match=f"'odd' .*other_package:odd.* {reason}"):
        assert method_names() == sorted([*known, "foreign"])
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # the warning comes once
        find_method("foreign")


def test_an_installed_package_is_enough(
    announce: Announce, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Real metadata on the path, as pip leaves it."""
    (tmp_path / "clinic_methods.py").write_text(
        "from sodap.methods import Sequential, register_method\n"
        "@register_method\n"
        "class Clinic(Sequential):\n"
        "    '''What the clinic does.'''\n"
        "    name = 'clinic'\n"
    )
    metadata = tmp_path / "clinic_methods-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Name: clinic-methods\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text("[sodap.methods]\nclinic = clinic_methods:Clinic\n")
    monkeypatch.syspath_prepend(tmp_path)
    load_plugins.cache_clear()
    assert find_method("clinic").__doc__ == "What the clinic does."
    monkeypatch.delitem(sys.modules, "clinic_methods")

"""What a method promises, one function a promise.

Each takes a `Trial` and raises `BrokenPromise` with the reason. Their first line is the promise.
"""

from __future__ import annotations

import copy
import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import Tensor

from sodap.errors import SodapError
from sodap.learning import Learner, load
from sodap.learning.progress import snapshot
from sodap.methods import find_method, options_of
from sodap.streams import Domain, Split
from sodap.testing.holdings import Holding, beside_state, in_state, is_derived
from sodap.testing.trial import BrokenPromise, Trial

Check = Callable[[Trial], None]

CHECKS: dict[str, Check] = {}
"""All promises by name, the simple ones first."""

SLOW: set[str] = set()
"""Those that take more than a second or two."""

NEEDS_GPU: set[str] = set()
"""Those that say something only where there is a GPU."""


def check_method(
    name: str,
    options: Mapping[str, Any] | None = None,
    *,
    device: str = "cpu",
    slow: bool = False,
) -> None:
    """Teach a registered method tiny streams and raise at the first promise that it breaks.

    `slow` adds the checks that compile. Where there is a GPU it is used in any case; `device`
    says where everything else is computed.
    """
    trial = Trial(name, options or {}, device)
    trial.learner()  # options that do not fit are the caller's mistake and break no promise
    for key, check in CHECKS.items():
        if (slow or key not in SLOW) and (torch.cuda.is_available() or key not in NEEDS_GPU):
            check(trial)


def _promise(check: Check) -> Check:
    """Enter a check into the table; whatever goes wrong in it names method and promise."""

    @functools.wraps(check)
    def judged(trial: Trial) -> None:
        said = (inspect.getdoc(check) or "").partition("\n")[0]
        verdict = f"method '{trial.method}' breaks the promise {check.__name__} ({said})"
        try:
            check(trial)
        except BrokenPromise as broken:
            raise BrokenPromise(f"{verdict}: {broken}") from None
        except Exception as error:
            kind = "" if isinstance(error, SodapError) else f"{type(error).__name__}: "
            raise BrokenPromise(f"{verdict}: {kind}{error}") from error

    CHECKS[check.__name__] = judged
    return judged


def _demand(kept: bool, otherwise: str) -> None:
    if not kept:
        raise BrokenPromise(otherwise)


# ------------------------------------------------------------------ what it says of itself


@_promise
def says_what_it_is(trial: Trial) -> None:
    """A docstring, a few words on what trains and what is stored, a line for every option."""
    method = find_method(trial.method)
    for attribute in ("name", "family", "trains", "stores"):
        _demand(bool(getattr(method, attribute, "")), f"it has no {attribute}")
    _demand(bool(method.__doc__), f"{method.__name__} has no docstring")
    for option in options_of(method.Config):
        _demand(bool(option.meaning), f"option '{option.name}' has no description")
        _demand(option.default != "–", f"option '{option.name}' has no default")


# ------------------------------------------------------------------ training


@_promise
def losses_are_finite(trial: Trial) -> None:
    """Training gives named scalar losses that are finite, and a total to descend."""
    learner = trial.taught.learner
    method = copy.deepcopy(learner.method).train()  # what a step leaves behind is not looked at
    split, device = trial.stream.domains[1].train, learner.fabric.device
    images = method.backbone.prepare(split.images.to(device))
    generator = torch.Generator(device).manual_seed(0)
    losses = method.losses(images, split.labels.to(device), generator)
    _demand(bool(losses), "there is no loss")
    for name, loss in losses.items():
        _demand(loss.ndim == 0, f"the loss '{name}' is no scalar but {list(loss.shape)}")
        _demand(bool(loss.isfinite()), f"the loss '{name}' is {float(loss.detach())}")
    total = method.total(losses)
    _demand(total.ndim == 0 and bool(total.isfinite()), f"the total is {total.detach()}")
    if trial.gradient:
        _demand(total.requires_grad, "the total has no gradient, so no step can descend it")


@_promise
def frozen_stays_frozen(trial: Trial) -> None:
    """The backbone, and all of the state that is not trained in a stage, stays to the bit."""
    learner = trial.taught.learner
    digest, fresh = learner.method.backbone.digest(), trial.learner().method.backbone.digest()
    _demand(digest == fresh, "the frozen backbone was changed")
    for steps in trial.taught.steps:
        _demand(
            steps.before.keys() == steps.after.keys(),
            f"the steps of stage {steps.stage} added or dropped "
            f"{_listed(steps.before.keys() ^ steps.after.keys())}; make room in begin_stage",
        )
        moved = [
            name
            for name, value in steps.before.items()
            if name not in steps.trained
            and not any(fnmatchcase(name, pattern) for pattern in learner.method.running)
            and not torch.equal(value, steps.after[name])
        ]
        _demand(
            not moved,
            f"the steps of stage {steps.stage} moved {_listed(moved)}, which no optimiser was "
            f"given; train it, leave it alone, or name it in `running`",
        )


@_promise
def trainable_count_is_true(trial: Trial) -> None:
    """It counts what a stage trains: no fewer numbers than move, no more than can."""
    _demand(trial.taught.learner.method.trainable_count() > 0, "it says that nothing is learned")
    _demand(bool(trial.taught.steps) == trial.gradient, "`learns_by_gradient` is not true")
    for steps in trial.taught.steps:
        _demand(
            steps.moved <= steps.claimed <= steps.offered,
            f"in stage {steps.stage} it says {steps.claimed}, but {steps.moved} numbers moved, "
            f"and the optimiser was given {steps.offered}",
        )
        _demand(steps.moved > 0, f"in stage {steps.stage} nothing moved")


@_promise
def a_seed_decides_everything(trial: Trial) -> None:
    """Two learners with one seed are equal, whatever else is drawn from torch's own generator."""
    first = trial.taught.first_state
    with torch.random.fork_rng():
        torch.manual_seed(20_011)
        learner = trial.learner()
        trial.teach(learner, trial.stream.domains)
    _same_state(trial, learner.method.state(), first, "a second run of stage 1")


# ------------------------------------------------------------------ predicting


@_promise
def each_image_counts_alone(trial: Trial) -> None:
    """The logits of an image depend on nothing but the image: not on its batch, not on order."""
    learner, images = trial.taught.learner, trial.stream.domains[0].test.images
    whole = trial.logits(learner, images)
    classes = len(learner.classes)
    _demand(
        whole.shape == (len(images), classes),
        f"logits of {len(images)} images and {classes} classes are {list(whole.shape)}",
    )
    _demand(bool(whole.isfinite().all()), "some logits are not finite")
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(1))
    others = trial.stream.domains[1].test.images
    ways = {
        "asked once more": trial.logits(learner, images),
        "asked alone": torch.cat([trial.logits(learner, image[None]) for image in images[:6]]),
        "asked in another order": trial.logits(learner, images[order])[order.argsort()],
        "asked with other images": trial.logits(learner, torch.cat([others, images]))[
            len(others) :
        ],
    }
    for way, found in ways.items():
        expected = whole[: len(found)].softmax(-1)
        change = float((found.softmax(-1) - expected).abs().max())
        _demand(
            change <= trial.tolerance,
            f"{way}, an image gets another answer: a probability changes by {change:.2g}",
        )


@_promise
def precision_changes_little(trial: Trial) -> None:
    """In bf16 it learns, and what was learned in float32 is said again, nearly."""
    half = load(trial.taught.folder, device=trial.device, precision="bf16")
    found = trial.logits(half, trial.stream.domains[0].test.images).softmax(-1)
    change = float((found - trial.taught.first_logits.softmax(-1)).abs().max())
    _demand(change <= 0.1, f"a probability changes by {change:.2g}")
    trial.teach(half, trial.stream.domains)
    found = trial.logits(half, trial.stream.domains[0].test.images)
    _demand(bool(found.isfinite().all()), "after a stage in bf16 some logits are not finite")


# ------------------------------------------------------------------ what is kept


@_promise
def nothing_is_hidden(trial: Trial) -> None:
    """Every tensor is a parameter or a buffer, where a save finds it and an audit counts it."""
    method = trial.taught.learner.method
    loose = [each.name for each in beside_state(method) if not is_derived(method, each.name)]
    _demand(
        not loose,
        f"{_listed(loose)} holds numbers outside the state; register a buffer, or name it in "
        f"`derived` if it is made anew from the state",
    )


@_promise
def what_is_kept_is_declared(trial: Trial) -> None:
    """No image is kept, and nothing grows with the images seen, unless `stored` declares images."""
    learner = trial.taught.learner
    assets = learner.stored()
    words = find_method(trial.method).stores
    # Words are about the defaults: an option may switch off what is stored.
    honest = not assets if words == "nothing" else bool(assets or trial.options)
    _demand(honest, f"`stores` says '{words}', but `stored` lists {len(assets)} assets")
    for asset in assets:
        _demand(bool(asset.name and asset.kind), "an asset has no name or no kind")
        _demand(asset.bytes > 0, f"the asset '{asset.name}' has {asset.bytes} bytes")
        _demand(asset.images >= 0, f"the asset '{asset.name}' has {asset.images} images")

    more = trial.learner()
    for _ in range(2):
        trial.teach(more, trial.stripes(count=48).domains)
    growth = _bytes(more) - _bytes(learner)
    declared = _image_bytes(more) - _image_bytes(learner)
    _demand(
        growth <= max(declared, 0),
        f"with twice as many images it holds {growth} bytes more, but its assets of images "
        f"account for {declared}",
    )
    if not any(asset.images for asset in assets):
        side = learner.method.backbone.image_size
        pictures = [each.name for each in _beyond_parameters(learner) if _pictures(each, side)]
        _demand(not pictures, f"{_listed(pictures)} looks like images, and no asset declares any")


def _bytes(learner: Learner) -> int:
    held = (*in_state(learner.method), *beside_state(learner.method))
    return sum(each.bytes for each in held)


def _image_bytes(learner: Learner) -> int:
    return sum(asset.bytes for asset in learner.stored() if asset.images)


def _beyond_parameters(learner: Learner) -> list[Holding]:
    """A prompt may be painted on images: parameters are what was learned, not what was seen."""
    learned = {name for name, _ in learner.method.named_parameters()}
    held = (*in_state(learner.method), *beside_state(learner.method))
    return [each for each in held if each.name not in learned]


def _pictures(held: Holding, side: int) -> bool:
    return held.shape[-3:] in ((3, side, side), (side, side, 3))


# ------------------------------------------------------------------ save, load, go on


@_promise
def a_saved_learner_goes_on(trial: Trial) -> None:
    """Loaded from disk it predicts the same, keeps the same, and learns the next stage the same."""
    taught, domains = trial.taught, trial.stream.domains
    loaded = load(taught.folder, device=trial.device, precision="fp32")
    _same_state(trial, loaded.method.state(), taught.first_state, "the loaded learner")
    found = trial.logits(loaded, domains[0].test.images)
    _demand(trial.same(found, taught.first_logits), "loaded, it predicts something else")
    trial.teach(loaded, domains)
    _same_state(trial, loaded.method.state(), taught.learner.method.state(), "stage 2 after a load")
    _demand(
        loaded.stored() == taught.learner.stored(),
        "after a load and stage 2 `stored` lists other assets",
    )
    if taught.first_state:
        try:
            loaded.restore({}, 2, 2)
        except SodapError:
            return
        raise BrokenPromise("it accepts an empty state; `restore` must refuse what does not fit")


@_promise
def a_stage_goes_on_after_an_epoch(trial: Trial) -> None:
    """Interrupted after an epoch and resumed, a stage ends as if nothing had happened."""
    taught = trial.taught
    if taught.midway is None:
        _demand(not trial.gradient, "it learns by gradient but has no epochs")
        return
    learner = trial.learner()
    learner.restore(copy.deepcopy(taught.midway.state), stage=2, stages_learned=1)
    last: dict[str, Tensor] = {}

    def look(epoch: int, done: int, total: int) -> None:
        last.update(snapshot(learner.method.state()))

    progress = copy.deepcopy(taught.midway.progress)
    trial.teach(learner, trial.stream.domains, resumed=progress, on_batch=look)
    # The best epoch may be the one before the interruption: that alone would prove nothing.
    _same_state(trial, last, taught.steps[-1].after, "the last step after a resume")
    _same_state(
        trial, learner.method.state(), taught.learner.method.state(), "stage 2 after a resume"
    )


def _same_state(
    trial: Trial, found: Mapping[str, Tensor], expected: Mapping[str, Tensor], what: str
) -> None:
    _demand(
        found.keys() == expected.keys(),
        f"{what} has or lacks {_listed(found.keys() ^ expected.keys())}",
    )
    other = [name for name in expected if not trial.same(found[name], expected[name])]
    _demand(not other, f"{what} differs in {_listed(other)}")


# ------------------------------------------------------------------ odd streams


@_promise
def any_number_of_classes(trial: Trial) -> None:
    """Two classes or ten, not only three: the logits have as many columns."""
    for classes in (2, 10):
        stream = trial.stripes(classes)
        learner = trial.learner(classes, epochs=1)
        trial.teach(learner, stream.domains)
        found = trial.logits(learner, stream.domains[0].test.images)
        _demand(found.shape[1] == classes, f"of {classes} classes it knows {found.shape[1]}")
        _demand(bool(found.isfinite().all()), f"with {classes} classes some logits are not finite")


@_promise
def a_class_may_be_missing(trial: Trial) -> None:
    """A stage without one of the classes is learned; so is the next, without another."""
    domains = [
        replace(domain, train=_without(domain.train, absent))
        for domain, absent in zip(trial.stream.domains, (2, 0), strict=True)
    ]
    _learns(trial, domains)


@_promise
def a_stage_may_be_one_batch(trial: Trial) -> None:
    """A stage of exactly one batch is learned."""
    _learns(trial, [replace(each, train=each.train.take(16)) for each in trial.stream.domains])


@_promise
def a_stage_may_be_one_image(trial: Trial) -> None:
    """A stage of a single image is learned: no division by n - 1, no empty batch."""
    _learns(trial, [replace(each, train=each.train.take(1)) for each in trial.stream.domains])


def _without(split: Split, absent: int) -> Split:
    kept = split.labels != absent
    return Split(split.images[kept], split.labels[kept])


def _learns(trial: Trial, domains: list[Domain]) -> None:
    learner = trial.learner(epochs=1)
    for domain in domains:
        trial.teach(learner, domains)
        found = trial.logits(learner, domain.test.images)
        _demand(
            bool(found.isfinite().all()),
            f"after stage {learner.stages_learned} some logits are not finite",
        )


# ------------------------------------------------------------------ other ways to compute


@_promise
def a_compiled_forward_agrees(trial: Trial) -> None:
    """`torch.compile` of forward says the same, or `not_compiled` says why it cannot."""
    learner = trial.taught.learner
    if learner.method.not_compiled:
        return
    method, device = learner.method.eval(), learner.fabric.device
    images = method.backbone.prepare(trial.stream.domains[0].test.images.to(device))
    # What a method's own code can break is being captured, not the making of machine code.
    compiled = torch.compile(method, backend="aot_eager")
    with torch.no_grad():
        change = float((compiled(images).softmax(-1) - method(images).softmax(-1)).abs().max())
    torch.compiler.reset()
    _demand(change <= trial.tolerance, f"compiled, a probability changes by {change:.2g}")


SLOW.add("a_compiled_forward_agrees")


@_promise
def a_gpu_agrees_with_the_cpu(trial: Trial) -> None:
    """Learned on one device, it predicts nearly the same on the other, and learns on there."""
    images = trial.stream.domains[0].test.images
    first = trial.taught.first_logits.softmax(-1)
    for device in ("cpu", "cuda"):
        other = load(trial.taught.folder, device=device, precision="fp32")
        change = float((trial.logits(other, images).softmax(-1) - first).abs().max())
        _demand(change <= 5e-3, f"on {device} a probability changes by {change:.2g}")
        trial.teach(other, trial.stream.domains)
        finite = bool(trial.logits(other, images).isfinite().all())
        _demand(finite, f"after a stage on {device} some logits are not finite")


NEEDS_GPU.add("a_gpu_agrees_with_the_cpu")


def _listed(names: Any) -> str:
    """The first few of many."""
    shown = sorted(names)
    rest = f" and {len(shown) - 4} more" if len(shown) > 4 else ""
    return ", ".join(f"'{name}'" for name in shown[:4]) + rest

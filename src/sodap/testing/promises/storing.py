"""Checks of what a method stores."""

from __future__ import annotations

from sodap.learning import Learner
from sodap.methods import find_method
from sodap.testing.audit import Holding, in_state, is_derived, outside_state
from sodap.testing.promises.checks import promise, quoted, require
from sodap.testing.trial import Trial


@promise
def all_tensors_are_in_the_state(trial: Trial) -> None:
    """Every tensor is a parameter or a buffer, or declared in `derived`."""
    method = trial.trained.learner.method
    outside = [each.name for each in outside_state(method) if not is_derived(method, each.name)]
    require(
        not outside,
        f"{quoted(outside)} is outside the state; register a buffer, or name it in `derived` if "
        f"it is recomputed from the state",
    )


@promise
def stored_data_is_declared(trial: Trial) -> None:
    """No image is stored, and no storage grows with the images, unless `stored` declares it."""
    learner = trial.trained.learner
    assets = learner.stored()
    summary = find_method(trial.method).stores
    # `stores` describes the defaults; an option may switch off what is stored.
    consistent = not assets if summary == "nothing" else bool(assets or trial.options)
    require(consistent, f"`stores` is '{summary}', but `stored` lists {len(assets)} assets")
    for asset in assets:
        require(bool(asset.name and asset.kind), "an asset has no name or no kind")
        require(asset.bytes > 0, f"the asset '{asset.name}' has {asset.bytes} bytes")
        require(asset.images >= 0, f"the asset '{asset.name}' has {asset.images} images")

    more = trial.learner()
    for _ in range(2):
        trial.learn_next(more, trial.tiny_stream(count=48).domains)
    growth = _bytes(more) - _bytes(learner)
    declared = _image_bytes(more) - _image_bytes(learner)
    require(
        growth <= max(declared, 0),
        f"with twice as many images it holds {growth} bytes more, but the images in `stored` "
        f"account for {declared}",
    )
    if not any(asset.images for asset in assets):
        side = learner.method.backbone.image_size
        images = [each.name for each in _besides_parameters(learner) if _is_image(each, side)]
        require(not images, f"{quoted(images)} has the shape of images, but no asset declares any")


def _bytes(learner: Learner) -> int:
    held = (*in_state(learner.method), *outside_state(learner.method))
    return sum(each.bytes for each in held)


def _image_bytes(learner: Learner) -> int:
    return sum(asset.bytes for asset in learner.stored() if asset.images)


def _besides_parameters(learner: Learner) -> list[Holding]:
    """All but parameters, because a prompt may have the shape of an image."""
    learned = {name for name, _ in learner.method.named_parameters()}
    held = (*in_state(learner.method), *outside_state(learner.method))
    return [each for each in held if each.name not in learned]


def _is_image(held: Holding, side: int) -> bool:
    return held.shape[-3:] in ((3, side, side), (side, side, 3))

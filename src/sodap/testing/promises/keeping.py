"""What a method keeps is in its state, is declared, and is no image in disguise."""

from __future__ import annotations

from sodap.learning import Learner
from sodap.methods import find_method
from sodap.testing.holdings import Holding, beside_state, in_state, is_derived
from sodap.testing.promises.judging import demand, listed, promise
from sodap.testing.trial import Trial


@promise
def nothing_is_hidden(trial: Trial) -> None:
    """Every tensor is a parameter or a buffer, where a save finds it and an audit counts it."""
    method = trial.taught.learner.method
    loose = [each.name for each in beside_state(method) if not is_derived(method, each.name)]
    demand(
        not loose,
        f"{listed(loose)} holds numbers outside the state; register a buffer, or name it in "
        f"`derived` if it is made anew from the state",
    )


@promise
def what_is_kept_is_declared(trial: Trial) -> None:
    """No image is kept, and nothing grows with the images seen, unless `stored` declares images."""
    learner = trial.taught.learner
    assets = learner.stored()
    words = find_method(trial.method).stores
    # Words are about the defaults: an option may switch off what is stored.
    honest = not assets if words == "nothing" else bool(assets or trial.options)
    demand(honest, f"`stores` says '{words}', but `stored` lists {len(assets)} assets")
    for asset in assets:
        demand(bool(asset.name and asset.kind), "an asset has no name or no kind")
        demand(asset.bytes > 0, f"the asset '{asset.name}' has {asset.bytes} bytes")
        demand(asset.images >= 0, f"the asset '{asset.name}' has {asset.images} images")

    more = trial.learner()
    for _ in range(2):
        trial.teach(more, trial.stripes(count=48).domains)
    growth = _bytes(more) - _bytes(learner)
    declared = _image_bytes(more) - _image_bytes(learner)
    demand(
        growth <= max(declared, 0),
        f"with twice as many images it holds {growth} bytes more, but its assets of images "
        f"account for {declared}",
    )
    if not any(asset.images for asset in assets):
        side = learner.method.backbone.image_size
        pictures = [each.name for each in _beyond_parameters(learner) if _pictures(each, side)]
        demand(not pictures, f"{listed(pictures)} looks like images, and no asset declares any")


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

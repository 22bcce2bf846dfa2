"""Synthetic images for pretraining: letters, symbols and line drawings, but no digits.

The shapes are rasterised once from matplotlib's fonts into a bank of masks. The painting adds all
variety; it is written in torch and runs on the device of the training.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import matplotlib
import numpy as np
import torch
import torch.nn.functional as F
from matplotlib.ft2font import FT2Font
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

MASK = 64  # the side of a mask; the glyph in it is at most 48 high and 54 wide
SIDE = 32  # the side of a painted image

# One string per class; characters that look alike at any size share a class. O, o, I, l, З, Ч and Б
# are left out because they look like digits.
CLASSES = (
    *("A", "B", "Cc", "D", "E", "F", "G", "H", "J", "Kk", "L", "M", "N", "P", "Q", "R", "Ss", "T"),
    *("Uu", "Vv", "Ww", "Xx", "Y", "Zz", "a", "b", "d", "e", "f", "g", "h", "i", "j", "m", "n"),
    *("p", "q", "r", "t", "y"),
    *("Γ", "Δ", "Θθ", "Λ", "Ξ", "Π", "Σ∑", "Φ", "Ψψ", "Ω", "α", "β", "γ", "δ", "ε", "ζ", "η"),
    *("λ", "μ", "ξ", "π", "σ", "φ", "ω", "Ж", "Д", "И", "Ц", "Ш", "Э", "Ю", "Я"),
    *("&", "@", "#", "$", "%", "?", "+", "=", "<", ">", "*", "{", "}", "[", "]", "§", "¶", "€"),
    *("£", "¥", "∞", "√", "∫", "∇", "∈", "∀", "∃", "⊗", "←", "→", "↑", "↓", "♠", "♣", "♥", "♦"),
    *("square", "pentagon", "star", "arch", "spiral", "zigzag", "house", "stairs", "wave", "fork"),
)

FONTS = (
    *("DejaVuSans", "DejaVuSans-Bold", "DejaVuSans-Oblique", "DejaVuSans-BoldOblique"),
    *("DejaVuSansMono", "DejaVuSansMono-Bold", "DejaVuSansMono-Oblique"),
    *("DejaVuSerif", "DejaVuSerif-Bold", "DejaVuSerif-Italic", "DejaVuSerif-BoldItalic"),
    *("STIXGeneral", "STIXGeneralBol", "STIXGeneralItalic", "STIXGeneralBolIta"),
    *("cmr10", "cmb10", "cmss10", "cmti10", "cmtt10"),
)
# Fonts for validation only: known glyphs in unseen designs.
HELD_OUT_FONTS = {"DejaVuSansMono-Bold", "DejaVuSerif-Italic", "STIXGeneralBolIta", "cmss10"}

# Letters on a seven-segment display, without those that look like a digit; segments from the top
# clockwise, then the middle.
SEGMENT_LETTERS = {
    **{"A": "abcefg", "Cc": "adef", "d": "bcdeg", "E": "adefg", "F": "aefg"},
    **{"G": "acdef", "H": "bcefg", "h": "cefg", "J": "bcde", "L": "def", "n": "ceg", "P": "abefg"},
    **{"r": "eg", "t": "defg", "Uu": "bcdef", "y": "bcdfg"},
}


@dataclass(frozen=True)
class Bank:
    """Masks `[M, 64, 64]` (uint8), their classes `[M]`, and whether each is held out `[M]`."""

    masks: Tensor
    classes: Tensor
    held_out: Tensor


def build_bank() -> Bank:
    """Rasterise every glyph in every font that has it, and several drawings of every shape."""
    entries: list[tuple[Image.Image, int, bool]] = []
    for name in FONTS:
        path = Path(matplotlib.get_data_path()) / "fonts" / "ttf" / f"{name}.ttf"
        font = ImageFont.truetype(str(path), 96, layout_engine=ImageFont.Layout.BASIC)
        # Beyond ASCII letters the code points of the TeX fonts do not match their glyphs.
        known = {
            code
            for code in FT2Font(str(path)).get_charmap()
            if not name.startswith("cm") or (chr(code).isascii() and chr(code).isalpha())
        }
        for index, glyphs in enumerate(CLASSES):
            entries += [
                (_fitted(_letter(glyph, font)), index, name in HELD_OUT_FONTS)
                for glyph in _spellings(glyphs)
                if ord(glyph) in known
            ]
    for variant in range(10):
        rng = np.random.default_rng(variant)
        width = 6 + 2 * variant
        for index, name in enumerate(CLASSES):
            for lines in _drawing(name, rng):
                entries.append((_fitted(_stroked(lines, width)), index, variant in (3, 7)))
    return Bank(
        masks=torch.from_numpy(np.stack([np.asarray(mask) for mask, _, _ in entries])),
        classes=torch.tensor([index for _, index, _ in entries]),
        held_out=torch.tensor([held_out for _, _, held_out in entries]),
    )


def _spellings(glyphs: str) -> str:
    """Characters of a class; none for the name of a drawing, which has more than two letters."""
    return glyphs if len(glyphs) <= 2 else ""


def _letter(glyph: str, font: ImageFont.FreeTypeFont) -> Image.Image:
    left, top, right, bottom = (int(edge) for edge in font.getbbox(glyph))
    mask = Image.new("L", (right - left, bottom - top))
    ImageDraw.Draw(mask).text((-left, -top), glyph, fill=255, font=font)
    return mask


def _fitted(mask: Image.Image) -> Image.Image:
    """The mask scaled and centred in 64 × 64 pixels."""
    scale = min(48 / mask.height, 54 / mask.width)
    small = mask.resize(
        (max(1, round(mask.width * scale)), max(1, round(mask.height * scale))),
        Image.Resampling.LANCZOS,
    )
    fitted = Image.new("L", (MASK, MASK))
    fitted.paste(small, ((MASK - small.width) // 2, (MASK - small.height) // 2))
    return fitted


Line = list[tuple[float, float]]


def _stroked(lines: list[Line], width: int) -> Image.Image:
    """Polylines (in units of 100 pixels) drawn with round joints, cropped to their ink."""
    mask = Image.new("L", (220, 220))
    pen = ImageDraw.Draw(mask)
    for line in lines:
        points = [(60 + 100 * x, 60 + 100 * y) for x, y in line]
        pen.line(points, fill=255, width=width)
        for x, y in points:
            r = width / 2 - 0.5
            pen.ellipse([x - r, y - r, x + r, y + r], fill=255)
    return mask.crop(mask.getbbox())


def _drawing(name: str, rng: np.random.Generator) -> list[list[Line]]:
    """Line drawings of a class (segment letters, geometric shapes); none for most classes."""
    drawings: list[list[Line]] = []
    if name in SEGMENT_LETTERS:
        w = float(rng.uniform(0.45, 0.65))
        ends: dict[str, Line] = {
            "a": [(0, 0), (w, 0)],
            "b": [(w, 0), (w, 0.5)],
            "c": [(w, 0.5), (w, 1)],
            "d": [(0, 1), (w, 1)],
            "e": [(0, 0.5), (0, 1)],
            "f": [(0, 0), (0, 0.5)],
            "g": [(0, 0.5), (w, 0.5)],
        }
        drawings.append([ends[segment] for segment in SEGMENT_LETTERS[name]])
    if len(name) > 2:
        drawings.append(
            [
                # Corners of a polygon may move far, points of a curve only a little.
                [tuple(rng.normal(point, 0.04 if len(line) < 10 else 0.008)) for point in line]
                for line in _shape(name)
            ]
        )
    return drawings


def _shape(name: str) -> list[Line]:
    def ring(corners: int, step: int = 1) -> Line:
        turns = np.arange(corners + 1) * step * 2 * np.pi / corners - np.pi / 2
        return [(0.5 + 0.5 * np.cos(turn), 0.5 + 0.5 * np.sin(turn)) for turn in turns]

    t = np.linspace(0, 1, 24)
    if name == "square":
        return [[(0, 0), (1, 0), (1, 1), (0, 1), (0, 0)]]
    if name == "pentagon":
        return [ring(5)]
    if name == "star":
        return [ring(5, step=2)]
    if name == "arch":
        half = [(0.5 - 0.5 * np.cos(np.pi * s), 0.5 - 0.5 * np.sin(np.pi * s)) for s in t]
        return [[(0, 1), *half, (1, 1)]]
    if name == "spiral":
        return [[(s * np.cos(13 * s) / 2, s * np.sin(13 * s) / 2) for s in t]]
    if name == "zigzag":
        return [[(0, 0.7), (0.25, 0.2), (0.5, 0.7), (0.75, 0.2), (1, 0.7)]]
    if name == "house":
        return [[(0, 0.45), (0.5, 0), (1, 0.45), (0.85, 0.45), (0.85, 1), (0.15, 1), (0.15, 0.45)]]
    if name == "stairs":
        return [[(0, 1), (0.33, 1), (0.33, 0.67), (0.67, 0.67), (0.67, 0.33), (1, 0.33), (1, 0)]]
    if name == "wave":
        return [[(s, 0.5 + 0.22 * np.sin(4 * np.pi * s)) for s in t]]
    assert name == "fork"
    return [[(0.5, 1), (0.5, 0)], [(0, 0), (0, 0.5), (1, 0.5), (1, 0)]]


COARSE = (8, 9, 10, 12, 14)  # pixels across an image, for masks that go through coarse ones
STYLES = 8  # numbers that describe the style of an image: paper, ink, grain, coarse pixels


class Painter:
    """Paints glyphs of a bank in random styles, on the device of its generator."""

    def __init__(self, bank: Bank, *, held_out: bool, generator: torch.Generator) -> None:
        self.generator = generator
        self.device = generator.device
        kept = bank.held_out == held_out
        self.masks = bank.masks[kept].to(self.device)
        classes = bank.classes[kept]
        # One row of masks per class, so that a class can be drawn first and then one of its masks.
        present = sorted(set(classes.tolist()))
        of_class = [(classes == index).nonzero()[:, 0] for index in present]
        self.labels = torch.tensor(present, device=self.device)
        self.counts = torch.tensor([len(rows) for rows in of_class], device=self.device)
        self.rows = torch.nn.utils.rnn.pad_sequence(of_class, batch_first=True).to(self.device)
        columns = (self.masks > 127).any(1)
        reach = (torch.arange(MASK, device=self.device) - MASK / 2 + 0.5).abs() / (MASK / 2)
        self.half_widths = (columns * reach).amax(1)

    def batch(self, size: int) -> tuple[Tensor, Tensor, Tensor]:
        """Images `[B, 3, 32, 32]` in -1 .. 1, classes `[B]`, styles `[B, 8]`.

        Kinds of treatment go by the place in the batch, which costs nothing: examples are
        exchangeable, so a slice is as good as a random choice.
        """
        rows, labels = self._pick(size)
        mask = self._warped(rows)
        mask, pixelated = self._pixelated(mask)
        mask = F.avg_pool2d(mask, 2)
        images, paper, ink = self._coloured(mask)
        images, noise = self._photographed(images)
        styles = torch.cat([paper, ink, noise, pixelated], dim=1)
        return images * 2 - 1, labels, styles

    def _uniform(self, *shape: int, low: float = 0.0, high: float = 1.0) -> Tensor:
        return torch.rand(*shape, generator=self.generator, device=self.device) * (high - low) + low

    def _normal(self, *shape: int) -> Tensor:
        return torch.randn(*shape, generator=self.generator, device=self.device)

    def _maybe(self, size: int, probability: float) -> Tensor:
        """`[B, 1, 1, 1]` of zeros and ones."""
        return (self._uniform(size, 1, 1, 1) < probability).float()

    def _pick(self, size: int) -> tuple[Tensor, Tensor]:
        """Rows of the bank `[B]` and their classes `[B]`, with equal odds for every class."""
        chosen = (self._uniform(size) * len(self.labels)).long()
        nth = (self._uniform(size) * self.counts[chosen]).long()
        return self.rows[chosen, nth], self.labels[chosen]

    def _warped(self, rows: Tensor) -> Tensor:
        """Masks `[B, 1, 64, 64]`: thicker or thinner, moved, bent, and with neighbours."""
        size = len(rows)
        mask = self._restroked(self.masks[rows])
        line = (torch.arange(MASK, device=self.device) + 0.5) * 2 / MASK - 1
        y, x = torch.meshgrid(line, line, indexing="ij")
        grid = torch.stack([x, y]).expand(size, 2, MASK, MASK).flatten(2)
        angle = self._normal(size) * 0.16
        slant = self._uniform(size, low=-0.3, high=0.3)
        zoom = self._uniform(size, low=0.82, high=1.55)
        narrow = self._uniform(size, low=0.85, high=1.25)
        cos, sin = angle.cos(), angle.sin()
        turn = torch.stack([cos, -sin, sin, cos], 1).view(-1, 2, 2)
        shear = torch.stack([narrow, slant, torch.zeros_like(cos), torch.ones_like(cos)], 1)
        linear = zoom[:, None, None] * shear.view(-1, 2, 2) @ turn
        tilt = (self._normal(size, 1, 2) * 0.12).clamp(-0.3, 0.3)
        source = linear @ (grid + self._uniform(size, 2, 1, low=-0.22, high=0.22))
        source = source / (1 + tilt @ grid)
        bend = F.interpolate(self._normal(size, 2, 4, 4), size=MASK, mode="bicubic")
        bend = bend * self._uniform(size, 1, 1, 1, high=0.09) * self._maybe(size, 0.6)
        source = (source.view(size, 2, MASK, MASK) + bend).permute(0, 2, 3, 1)
        painted = F.grid_sample(mask, source, align_corners=False)
        for side in (-1.0, 1.0):
            neighbours, _ = self._pick(size)
            gap = self._uniform(size, low=0.1, high=0.45)
            distance = self.half_widths[rows] + self.half_widths[neighbours] + gap
            offset = torch.stack([side * distance, self._normal(size) * 0.05], 1)
            moved = source - offset[:, None, None]
            other = F.grid_sample(
                self._restroked(self.masks[neighbours]), moved, align_corners=False
            )
            painted = torch.maximum(painted, other * self._maybe(size, 0.3))
        return painted

    def _restroked(self, masks: Tensor) -> Tensor:
        """Masks `[B, 64, 64]` (uint8) as `[B, 1, 64, 64]`, some thicker and some thinner."""
        mask = masks[:, None].float() / 255
        amount = self._uniform(len(mask), 1, 1, 1, low=-1, high=2)
        thick = F.max_pool2d(mask, 5, 1, 2)
        thin = -F.max_pool2d(-mask, 3, 1, 1)
        mask = mask + (amount - 0.5).clamp(0, 1) * (thick - mask)
        return mask + (-amount).clamp(0, 0.7) * (thin - mask)

    def _pixelated(self, mask: Tensor) -> tuple[Tensor, Tensor]:
        """Masks `[B, 1, 64, 64]`, the first 40 % of them through 8 to 14 coarse pixels, and which.

        Half of those are enlarged smoothly, as an old scan is; the others become dots or blocks.
        """
        size = len(mask)
        chunks = mask[: size * 2 // 5].tensor_split(2 * len(COARSE))
        done = []
        for index, chunk in enumerate(chunks):
            cells = COARSE[index // 2]
            coarse = F.adaptive_avg_pool2d(chunk, cells)
            coarse = coarse / coarse.amax((1, 2, 3), keepdim=True).clamp(min=0.3)
            if index % 2:
                smooth = F.interpolate(coarse, size=MASK, mode="bicubic")
                steep = self._uniform(len(chunk), 1, 1, 1, low=0.25, high=0.8)
                done.append(((smooth - 0.2) / steep).clamp(0, 1))
            else:
                on = ((coarse - 0.3) * 8).clamp(0, 1)
                unlit = self._uniform(len(chunk), 1, 1, 1, high=0.2)
                blocks = F.interpolate(unlit + (1 - unlit) * on, size=MASK, mode="nearest")
                inside = torch.arange(MASK, device=self.device) * cells / MASK % 1 - 0.5
                radius = inside[:, None] ** 2 + inside[None, :] ** 2
                reach = self._uniform(len(chunk), 1, 1, 1, low=0.33, high=0.75) ** 2
                done.append(blocks * ((reach - radius) * 12).clamp(0, 1))
        rest = mask[sum(len(chunk) for chunk in done) :]
        pixelated = torch.zeros(size, 1, device=self.device)
        pixelated[: size - len(rest)] = 1
        return torch.cat([*done, rest]), pixelated

    def _texture(self, size: int, cells: int) -> Tensor:
        """Low-frequency noise `[B, 3, 32, 32]` with a little colour."""
        noise = 0.4 * self._normal(size, 3, cells, cells) + 0.6 * self._normal(
            size, 1, cells, cells
        )
        return F.interpolate(noise, size=SIDE, mode="bicubic")

    def _ramp(self, size: int) -> Tensor:
        """Gradients `[B, 1, 32, 32]` in random directions, about -1 to 1."""
        angle = self._uniform(size, 1, 1, 1, high=2 * torch.pi)
        line = torch.linspace(-1, 1, SIDE, device=self.device)
        return angle.cos() * line + angle.sin() * line[:, None]

    def _coloured(self, mask: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Images `[B, 3, 32, 32]` in 0 .. 1 from masks `[B, 1, 32, 32]`, paper and ink `[B, 3]`."""
        size = len(mask)
        brightness = self._uniform(size, 1)
        contrast = self._uniform(size, 1, low=0.22, high=0.95)
        up = (self._uniform(size, 1) < 0.5).float() * 2 - 1
        ink = brightness + contrast * up
        # If the colour leaves the range on one side, take the other side.
        ink = torch.where((ink < -0.1) | (ink > 1.1), brightness - contrast * up, ink)
        paper = (brightness + self._normal(size, 3) * 0.1).clamp(0, 1)
        ink = (ink + self._normal(size, 3) * 0.15).clamp(0, 1)
        # Every sixth is bright in a strong colour on dark, like a display.
        lamp = (torch.arange(size, device=self.device) % 6 == 0)[:, None]
        hue = self._uniform(size, 3) ** 2
        paper = torch.where(lamp, self._uniform(size, 3, high=0.14), paper)
        ink = torch.where(lamp, hue / hue.amax(1, keepdim=True).clamp(min=0.05), ink)

        busy = self._uniform(size, 1, 1, 1) ** 2  # mostly calm, sometimes cluttered
        ground = paper[..., None, None].expand(size, 3, SIDE, SIDE)
        ground = (
            ground + busy * 0.22 * self._texture(size, 5) + busy * 0.1 * self._texture(size, 16)
        )
        ground = ground + 0.2 * busy * self._ramp(size)
        frequency = self._uniform(size, 1, 1, 1, low=4, high=18)
        seams = (self._ramp(size) * frequency).sin() > self._uniform(size, 1, 1, 1, low=0.5)
        depth = self._uniform(size, 1, 1, 1, low=-0.25, high=0.25) * self._maybe(size, 0.35)
        ground = ground + depth * seams

        soft = _blurred(_blurred(mask))
        fall = self._maybe(size, 0.4) * self._uniform(size, 1, 1, 1, high=0.5)
        ground = ground * (1 - fall * soft.roll((1, 1), (2, 3)))
        colour = ink[..., None, None] + 0.1 * busy * self._texture(size, 6)
        bleed = self._uniform(size, 1, 1, 1, high=0.6) * self._maybe(size, 0.3)
        cover = torch.maximum(mask, bleed * soft) * self._uniform(size, 1, 1, 1, low=0.75)
        return ground + (colour - ground) * cover, paper, ink

    def _photographed(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Add light, shadow, blur, grain and sometimes a covered patch; return the grain too."""
        size = len(images)
        images = images * (1 + self._uniform(size, 1, 1, 1, high=0.3) * self._ramp(size))
        edge = (4 * self._ramp(size) + self._uniform(size, 1, 1, 1, low=-2, high=2)).clamp(0, 1)
        dim = self._uniform(size, 1, 1, 1, low=0.1, high=0.5) * self._maybe(size, 0.25)
        images = images * (1 - dim * edge)
        images = images + self._uniform(size, 1, 1, 1) * (_blurred(images) - images)
        grain = self._uniform(size, 1, 1, 1, high=0.33) ** 2
        images = images + grain * self._normal(*images.shape)
        line = torch.arange(SIDE, device=self.device)
        at = self._uniform(size, 2, 1, low=-4, high=SIDE)
        side = self._uniform(size, 2, 1, low=3, high=10)
        within = (line >= at) & (line < at + side)
        patch = (within[:, 0, None, :] & within[:, 1, :, None])[:, None] * self._maybe(size, 0.15)
        images = images + (self._uniform(size, 3, 1, 1) - images) * patch
        return images.clamp(0, 1), grain.view(size, 1)


def _blurred(images: Tensor) -> Tensor:
    """Images `[B, C, H, W]` after a small binomial filter."""
    taps = torch.tensor([1.0, 4.0, 6.0, 4.0, 1.0], device=images.device) / 16
    channels = images.shape[1]
    padded = F.pad(images, (2, 2, 2, 2), mode="replicate")
    wide = F.conv2d(padded, taps.view(1, 1, 1, 5).repeat(channels, 1, 1, 1), groups=channels)
    return F.conv2d(wide, taps.view(1, 1, 5, 1).repeat(channels, 1, 1, 1), groups=channels)

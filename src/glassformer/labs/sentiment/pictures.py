"""The lab's pictures that are not heat maps of heads: what the course draws, from real weights and real runs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise, product
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import MaxNLocator, NullFormatter
from torch import Tensor, nn

from glassformer.errors import require
from glassformer.labs.sentiment.compare import Bin
from glassformer.labs.sentiment.course import LayerNorm, MiniTransformer
from glassformer.labs.sentiment.course_training import SimpleTokenizer
from glassformer.layers.sinusoids import SinusoidalPositions
from glassformer.observe.figures.attention_maps import attention_map
from glassformer.observe.figures.heat_maps import MOST_TEXTS, panel
from glassformer.observe.figures.style import BLACK, HATCHES, LINES, RED, in_style, line, new_figure

_SIGNED = "cividis"
"""Unlike red and blue, it tells below 0 from above in a print in grey too."""


@in_style
def recurrent_and_parallel(words: Sequence[str]) -> Figure:
    """How the first word's information comes to the last: step by step in a recurrence, at once in attention.

    Raises:
        InputError: Fewer than 2 words, or more than 12.
    """
    count = len(words)
    require(2 <= count <= 12, f"{count} words", "2 to 12", "Take a short sentence.")
    width = max(1.0, 0.13 * max(map(len, words)))
    figure, panels = new_figure(2 * width * count + 1, 2.8, columns=2)
    for ax, name in zip(panels, ("Recurrence", "Attention"), strict=True):
        ax.set(xlim=(-0.6, count - 0.4), ylim=(-0.15, 1.35))
        ax.set_axis_off()
        path = [(0, 0), *((place, 1) for place in (range(count) if name == "Recurrence" else [count - 1]))]
        links = [((n, 0), (n, 1)) for n in range(count)] + [((n, 1), (n + 1, 1)) for n in range(count - 1)]
        if name == "Attention":
            links = [((source, 0), (target, 1)) for source in range(count) for target in range(count)]
        for start, end in links:
            first = (start, end) in pairwise(path)
            look = {"color": RED, "lw": 2.2} if first else {"color": "#909090", "lw": 0.8}
            arrow = {"arrowstyle": "->", "shrinkA": 9, "shrinkB": 7, **look}
            ax.annotate("", end, start, arrowprops=arrow, zorder=3 if first else 2)
        for place, word in enumerate(words):
            ax.plot(place, 1, "o", markersize=11, color="white", markeredgecolor=BLACK)
            ax.text(place, 0, word, ha="center", va="center", parse_math=False, zorder=4, backgroundcolor="white")
            if name == "Recurrence":
                ax.text(place, 1.2, f"step {place + 1}", ha="center", fontsize=8)
        steps = len(path) - 1
        after = f"{count} steps, one after another" if name == "Recurrence" else "1 step for all"
        ax.set_title(f"{name}: {after}\nfrom the first word to the last: {steps} link{'s' * (steps > 1)}")
    return figure


@in_style
def position_encoding(num_positions: int = 50, hidden_dim: int = 64) -> Figure:
    """The sinusoidal positions, and the products of two of them by distance.

    The product of positions p and p + k is ``sum over pairs i of cos(k / 10000 ** (2 i / hidden_dim))``, whatever p is:
    that is how a distance can be read off.

    Raises:
        InputError: Fewer than 8 positions, or an odd ``hidden_dim``, whose last sine has no cosine.
    """
    require(num_positions >= 8, f"num_positions = {num_positions}", "at least 8", "The course draws 50.")
    require(hidden_dim % 2 == 0, f"hidden_dim = {hidden_dim}", "an even number", "Sines and cosines come in pairs.")
    table = SinusoidalPositions(hidden_dim, num_positions).table.double().numpy()
    figure, (waves, products) = new_figure(11, 4.6, columns=2)
    image = panel(waves, table.T, "", "position", "coordinate", limits=(-1, 1), colormap=_SIGNED)
    waves.set_title(f"What is added to each of {num_positions} positions", loc="left")
    waves.set(xticks=range(0, num_positions, 10), yticks=range(0, hidden_dim, max(1, hidden_dim // 8)))
    waves.set_box_aspect(None)
    figure.colorbar(image, ax=waves, label="value")
    for series, start in enumerate((0, num_positions // 4, num_positions // 2)):
        reached = table[start:] @ table[start]
        products.plot(reached, **line(series, len(reached)), label=f"from position {start}")
    products.set(xlabel="distance", ylabel="product of two encodings", title="A product depends on the distance alone")
    products.legend()
    return figure


@in_style
def embeddings_with_and_without_positions(model: MiniTransformer, tokenizer: SimpleTokenizer, text: str) -> Figure:
    """A text's vectors as the model makes them, before and after it adds positions, first 16 coordinates.

    The columns of the first word that comes twice are framed: equal on the left, different on the right.

    Raises:
        InputError: A text without a word that comes twice, longer than the model can read, or a tokenizer without
            vocabulary or with a larger one.
    """
    ids = tokenizer.words.encode(text)
    names = [tokenizer.inverse_vocab[index] for index in ids]
    twice = next((index for place, index in enumerate(ids) if index in ids[:place]), None)
    require(twice is not None, f"the text {text!r}", "one with a word that comes twice", "Try 'the cat and the dog'.")
    places = [place for place, index in enumerate(ids) if index == twice][:2]
    device = model.classifier.weight.device
    with torch.no_grad():
        plain = model.embeddings.token_embedding(torch.tensor([ids], device=device))
        added = model.embeddings.pos_encoding(plain)
    largest = float(torch.maximum(plain.abs().max(), added.abs().max()))
    figure, axes = new_figure(max(9.0, 0.55 * len(ids) + 4), 5, columns=2)
    for ax, name, vectors in zip(axes, ("Tokens alone", "Tokens and positions"), (plain, added), strict=True):
        apart = float((vectors[0, places[0]] - vectors[0, places[1]]).norm())
        shown = vectors[0, :, :16].cpu().numpy().T
        image = panel(ax, shown, "", "token", limits=(-largest, largest), colormap=_SIGNED, x_names=names)
        ax.set_box_aspect(None)
        ax.set_title(f"{name}\n“{names[places[0]]}” twice: distance {apart:.2g}", loc="left")
        for place, (colour, size) in product(places, (("white", 5), ("black", 2))):
            frame = Rectangle((place - 0.5, -0.5), 1, len(shown), fill=False, ec=colour, lw=size, clip_on=False)
            ax.add_patch(frame)
    axes[0].set_ylabel("coordinate")
    figure.colorbar(image, ax=axes, label="value")
    return figure


@in_style
def norm_histograms(x: Float[Tensor, "*batch features"]) -> Figure:
    """Numbers before a layer normalisation, after the course's, after torch's, and the difference of the two.

    The course divides by ``std + 1e-6`` with n - 1 under the root, torch by ``sqrt(var + 1e-5)`` with n, so that the
    course's result is torch's times ``sqrt((n - 1) / n)``, but for the two small numbers.

    Raises:
        InputError: Fewer than 2 features, or numbers that are not finite.
    """
    require(bool(torch.isfinite(x).all()), "NaN or infinite numbers", "finite ones", "Check what made x.")
    features = x.shape[-1]
    with torch.no_grad():
        course = LayerNorm(features).to(x)(x).double().flatten().cpu().numpy()
        official = nn.LayerNorm(features).to(x)(x).double().flatten().cpu().numpy()
    figure, axes = new_figure(13, 3.4, columns=4)
    named = (("Before", x.double().flatten().cpu().numpy()), ("The course's LayerNorm", course), ("torch's", official))
    for ax, (name, values), look in zip(axes, named, LINES, strict=False):
        ax.hist(values, bins=50, color=look["color"])
        ax.axvline(0, color=BLACK, lw=0.8, ls=":")
        ax.set_title(f"{name}\nmean {round(values.mean(), 3) + 0.0:.3f}, std {values.std():.4f}")
        ax.set_xlabel("value")
    axes[0].set_ylabel("numbers")
    factor = float(course @ official / max(float(official @ official), 1e-300))
    chosen = slice(None, None, max(1, len(course) // 500))
    axes[3].plot(official[chosen], (course - official)[chosen], ".", color=BLACK, markersize=3)
    axes[3].set(xlabel="torch's", ylabel="the course's minus torch's")
    expected = f"sqrt({features - 1}/{features}) = {math.sqrt((features - 1) / features):.5f}"
    axes[3].set_title(f"Ratio {factor:.5f}\n{expected}")
    return figure


def overfitting_from(history: Mapping[str, Sequence[float]], rise: float = 0.01) -> int | None:
    """The epoch, from 1, behind that of the lowest validation loss, if training went on to overfit; else None.

    It did if at the end the training loss is below what it was at that lowest point, and the validation loss by the
    share ``rise`` above.
    """
    train, held_out = history["train_loss"], history["val_loss"]
    best = int(np.argmin(held_out))
    overfits = train[-1] < train[best] and held_out[-1] > (1 + rise) * held_out[best]
    return best + 2 if overfits else None


@in_style
def training_curves(history: Mapping[str, Sequence[float]], title: str = "") -> Figure:
    """Loss and accuracy by epoch, with the lowest validation loss marked and :func:`overfitting_from` it on shaded.

    Args:
        history: As :func:`~glassformer.labs.sentiment.exercises.train_transformer` returns it, accuracies in percent;
            ``train_acc`` may be missing.
        title: Above both panels.

    Raises:
        InputError: A series that is missing, empty or of another length.
    """
    epochs = len(history.get("val_loss", ()))
    needed = ("train_loss", "val_loss", "val_acc", *(["train_acc"] if "train_acc" in history else []))
    lengths = {name: len(history.get(name, ())) for name in needed}
    require(set(lengths.values()) == {epochs} != {0}, f"epochs {lengths}", "equally many, not 0", "Give all epochs.")
    figure, axes = new_figure(10, 4, columns=2)
    best, start = int(np.argmin(history["val_loss"])) + 1, overfitting_from(history)
    note = "no overfitting seen" if start is None else f"overfitting from epoch {start}"
    for ax, kind, unit in ((axes[0], "loss", "loss, nats"), (axes[1], "acc", "accuracy, %")):
        for series, (part, name) in enumerate((("train", "training"), ("val", "validation"))):
            if (values := history.get(f"{part}_{kind}")) is not None:
                ax.plot(range(1, epochs + 1), values, **line(series, epochs), label=name)
        ax.axvline(best, color=BLACK, lw=0.9, ls=":", label=f"lowest validation loss, epoch {best}")
        if start is not None:
            ax.axvspan(start - 1, epochs, color="#d8d8d8", alpha=0.5, lw=0)
        ax.set(xlabel="epoch", ylabel=unit)
        ax.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
        ax.legend(title=note if kind == "loss" else None, title_fontproperties={"style": "italic"})
    figure.suptitle(title, fontsize=11, fontweight="bold")
    return figure


def attention_example(words: Sequence[str], weights: Float[np.ndarray, "query key"], title: str = "") -> Figure:
    """One head's weights over one text, written into the cells.

    Raises:
        InputError: More than 22 words, weights that are not one for each two of them, or rows that do not sum to 1.
    """
    count = len(words)
    require(1 <= count <= MOST_TEXTS, f"{count} words", f"1 to {MOST_TEXTS}", "Take a shorter text.")
    require(weights.shape == (count, count), f"weights of shape {list(weights.shape)}", f"[{count}, {count}]", _TRIM)
    sums = weights.sum(axis=1)
    require(bool(np.allclose(sums, 1, atol=1e-3)), f"row sums {sums.round(3).tolist()}", "1 for each query", _TRIM)
    return attention_map(weights, words, title=title or "Each row sums to 1", largest=1.0)


_TRIM = "Cut words and weights to the same real tokens; weights without sinks and dropout sum to 1."


@in_style
def reliability(named_bins: Mapping[str, Sequence[Bin]]) -> Figure:
    """How often several classifiers are right when they say a probability: on the diagonal, they mean what they say.

    Args:
        named_bins: For each classifier its :func:`~glassformer.labs.sentiment.compare.reliability`. Bars are 95 %
            intervals; below stands how many texts each bin has.

    Raises:
        InputError: No classifier, or more than 6.
    """
    require(1 <= len(named_bins) <= len(LINES), f"{len(named_bins)} classifiers", f"1 to {len(LINES)}", "Choose some.")
    figure, (curves, sizes) = new_figure(7, 7, rows=2, sharex=True, height_ratios=(3, 1))
    curves.plot([0, 1], [0, 1], color="#808080", lw=0.9, label="as said")
    width = 0.08 / len(named_bins)
    for series, (name, bins) in enumerate(named_bins.items()):
        drawn = LINES[series]
        predicted, actual = np.array([(each.predicted, each.actual) for each in bins]).reshape(-1, 2).T
        low, high = np.array([wilson(each.actual, each.count) for each in bins]).reshape(-1, 2).T
        spread = {"ecolor": drawn["color"], "elinewidth": 0.8}
        curves.errorbar(predicted, actual, (actual - low, high - actual), **drawn, **spread, label=name)
        places = np.minimum(np.floor(predicted * 10), 9) / 10 + 0.05 + (series - (len(named_bins) - 1) / 2) * width
        counts = [each.count for each in bins]
        sizes.bar(places, counts, width, color=drawn["color"], hatch=HATCHES[series], edgecolor="white", lw=0.3)
    curves.set(xlim=(0, 1), ylim=(-0.02, 1.02), ylabel="share that is of the class", title="Calibration")
    curves.legend()
    sizes.set(xlabel="probability of the class, mean of each tenth", xticks=np.arange(11) / 10)
    sizes.set(ylabel="texts", yscale="log", ylim=(0.7, None))
    sizes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    sizes.yaxis.set_minor_formatter(NullFormatter())
    return figure


def wilson(share: float, count: int, z: float = 1.959964) -> tuple[float, float]:
    """The 95 % interval of a probability of which ``share`` was seen in ``count`` trials.

    ``(share + z² / 2n ± z sqrt(share (1 - share) / n + z² / 4n²)) / (1 + z² / n)``

    Source: Wilson 1927, "Probable inference, the law of succession, and statistical inference".
    """
    middle, scale = share + z * z / (2 * count), 1 + z * z / count
    half = z * math.sqrt(share * (1 - share) / count + (z / (2 * count)) ** 2)
    # At shares of 0 and 1, rounding could put the end on the wrong side.
    return max(0.0, min(share, (middle - half) / scale)), min(1.0, max(share, (middle + half) / scale))


@in_style
def per_kind_bars(
    accuracies: Mapping[str, Mapping[str, float]], counts: Mapping[str, int], chance: float = 0.5
) -> Figure:
    """Accuracy of several models on each kind of review, with 95 % intervals (:func:`wilson`).

    Args:
        accuracies: For each model, its accuracy in [0, 1] on each kind.
        counts: How many reviews of each kind there are, in the order to draw.
        chance: What guessing achieves.

    Raises:
        InputError: No model or more than 6, no kinds, a kind without reviews, or an accuracy missing or outside [0, 1].
    """
    require(1 <= len(accuracies) <= len(LINES), f"{len(accuracies)} models", f"1 to {len(LINES)}", "Choose some.")
    require(min(counts.values(), default=0) > 0, f"counts = {dict(counts)}", "kinds with reviews", "Leave others out.")
    figure, (ax,) = new_figure(max(7.0, 0.35 * len(counts) * len(accuracies) + 3), 4.2)
    width, kinds = 0.8 / len(accuracies), list(counts)
    for series, (name, by_kind) in enumerate(accuracies.items()):
        missing = [kind for kind in kinds if not 0 <= by_kind.get(kind, -1) <= 1]
        require(not missing, f"{name} without {missing}", "an accuracy in [0, 1] for each kind", "Measure them.")
        values = np.array([by_kind[kind] for kind in kinds])
        low, high = np.array([wilson(by_kind[kind], counts[kind]) for kind in kinds]).T
        places = np.arange(len(kinds)) + (series - (len(accuracies) - 1) / 2) * width
        look: dict[str, Any] = {"color": LINES[series]["color"], "hatch": HATCHES[series], "edgecolor": "white"}
        ax.bar(places, values, 0.92 * width, label=name, **look)
        ax.errorbar(places, values, (values - low, high - values), fmt="none", ecolor=BLACK, elinewidth=1, capsize=2)
    ax.axhline(chance, color=BLACK, lw=1, ls=(0, (4, 3)), label="chance")
    ax.set_xticks(range(len(kinds)), [f"{kind}\n{counts[kind]} reviews" for kind in kinds])
    ax.set(ylim=(0, 1.03), ylabel="accuracy", title="Accuracy by what the verdict rests on")
    ax.grid(False, axis="x")
    ax.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0))
    return figure

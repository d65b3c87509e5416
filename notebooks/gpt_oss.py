# ---
# jupyter:
#   jupytext:
#     formats: ipynb,py:percent
#     text_representation:
#       extension: .py
#       format_name: percent
#       format_version: '1.3'
#       jupytext_version: 1.19.6
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # GPT-OSS, step by step
#
# A decoder in the manner of GPT-OSS reads number sequences and learns to continue them. This notebook builds it from
# its parts, trains it for about a minute, and asks of each step: *is this as good as it can be?* For these sequences
# that question has an exact answer.
#
# The whole experiment, with every variant and a longer training, is one command: `glassformer lab gpt-oss`.

# %%
# %matplotlib inline
import warnings
from itertools import pairwise

warnings.filterwarnings("ignore", message="IProgress not found")

import torch

from glassformer.data.bayes import optimal_accuracy, optimal_predictions
from glassformer.data.recurrence import make_split, obeys_recurrence
from glassformer.generation.decoding import generate
from glassformer.generation.sampling import SamplingRule
from glassformer.kernels.pattern import CAUSAL, Pattern
from glassformer.labs.gpt_oss import (
    GroupedQueryAttention,
    MixtureOfExperts,
    RotaryPositionalEmbedding,
    calc_per_token_acc,
)
from glassformer.labs.gpt_oss.measure import behaviour
from glassformer.labs.gpt_oss.plan import ALL_TOGETHER, DATA, QUICK, RULES
from glassformer.labs.gpt_oss.training_runs import RecurrenceTask, batches, build_model
from glassformer.layers.attention import attend
from glassformer.observe.figures.heat_maps import write_values
from glassformer.observe.figures.style import BLACK, HATCHES, LINES, in_style, line, new_figure
from glassformer.training import train

torch.manual_seed(0)
print("torch", torch.__version__)

# %% [markdown]
# ## Attention, by hand
#
# Three tokens, one head of width 2. Each query is compared with each key; a causal mask forbids looking ahead; the
# softmax turns what is left into weights that add up to 1; the output is the weighted mean of the values:
#
# $$A = \mathrm{softmax}\left(\frac{Q\,(wK)^T}{\sqrt{d}} + M\right), \qquad O = A V$$
#
# The $w$ is what this model adds to ordinary attention: one learned factor per head on its keys. A large $w$ makes
# the head choose sharply, $w = 0$ makes it average over everything it may see.

# %%
q = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
k = torch.tensor([[1.0, 0.0], [0.0, 2.0], [1.0, 1.0]])
v = torch.tensor([[1.0, 0.0], [0.0, 1.0], [5.0, 5.0]])


def weights_by_hand(w: float) -> torch.Tensor:
    """The attention weights of the three tokens for key weight w."""
    scores = q @ (w * k).T / 2**0.5
    visible = torch.tensor([[1, 0, 0], [1, 1, 0], [1, 1, 1]], dtype=torch.bool)
    return scores.masked_fill(~visible, -torch.inf).softmax(dim=-1)


@in_style
def draw_weights(choices: tuple[float, ...]):
    """The weights as maps, one for each key weight."""
    figure, panels = new_figure(3 * len(choices), 2.8, columns=len(choices))
    for axes, w in zip(panels, choices, strict=True):
        image = axes.imshow(weights_by_hand(w), cmap="Greys", vmin=0, vmax=1)
        write_values(axes, weights_by_hand(w).numpy(), image)
        axes.set(title=f"key weight {w:g}", xlabel="key", ylabel="query", xticks=range(3), yticks=range(3))
        axes.grid(False)
    return figure


draw_weights((0.0, 1.0, 4.0))

# %% [markdown]
# The first token sees itself alone, so its weight is 1 whatever it thinks. The function through which every attention
# of the library passes gives the same output:

# %%
by_library = attend(q[None, None], k[None, None], v[None, None], CAUSAL, key_weights=torch.ones(1))[0, 0]
print("by hand:   ", (weights_by_hand(1.0) @ v).tolist())
print("by library:", by_library.tolist())
torch.testing.assert_close(by_library, weights_by_hand(1.0) @ v)

# %% [markdown]
# ## Positions as rotations
#
# Nothing so far knows the order of the tokens. The rotary embedding turns query and key by angles proportional to
# their positions, each pair of coordinates at a speed of its own. What a score then depends on is their *distance*:
# moving both by 100 positions changes nothing.

# %%
rope = RotaryPositionalEmbedding(16, max_seq_len=256)
one_query, one_key = torch.randn(2, 1, 1, 1, 16)
same = one_query.clone()


def score(query: torch.Tensor, key: torch.Tensor, query_at: int, key_at: int) -> float:
    """The product of a rotated query and a rotated key."""
    return float((rope(query, start_pos=query_at) * rope(key, start_pos=key_at)).sum())


print("distance 5, at positions  5 and   0:", round(score(one_query, one_key, 5, 0), 4))
print("distance 5, at positions 105 and 100:", round(score(one_query, one_key, 105, 100), 4))


@in_style
def draw_distances():
    """Scores over distance, of a key like the query and of another."""
    figure, (axes,) = new_figure(7, 3.2)
    for series, (key, label) in enumerate(((same, "key equal to the query"), (one_key, "another key"))):
        scores = [score(one_query, key, 60, 60 - distance) for distance in range(61)]
        axes.plot(range(61), scores, label=label, **line(series, 61))
    axes.set(title="Score of a query and a key by their distance", xlabel="distance in positions", ylabel="score")
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.2), ncols=2)
    return figure


draw_distances()

# %% [markdown]
# A key equal to the query matches best at distance 0; farther away the pairs fall out of step, the fast ones first.
#
# ## A window
#
# Every second layer sees the last few tokens only. The course's `window_size` counts the *previous* tokens, the
# library the keys including the token itself, hence one more. Two layers of window 2 reach four tokens back.

# %%
length, window_size = 10, 2
causal = Pattern(causal=True).mask(length, length)[0, 0]
windowed = Pattern(causal=True, window=window_size + 1).mask(length, length)[0, 0]
two_layers = (windowed.float() @ windowed.float()) > 0


@in_style
def draw_masks():
    """Who sees whom in the two kinds of layer, and through two windowed ones."""
    figure, panels = new_figure(9, 3.2, columns=3)
    titles = ("full causal", f"window_size = {window_size}", "through two such layers")
    for axes, mask, title in zip(panels, (causal, windowed, two_layers), titles, strict=True):
        axes.imshow(mask, cmap="Greys", vmin=0, vmax=1.6)
        axes.set(title=title, xlabel="key", ylabel="query")
        axes.grid(False)
    return figure


draw_masks()

# %% [markdown]
# ## Grouped heads
#
# Query heads that share keys and values need fewer weights, and less memory while generating. What four heads cost
# with four, two and one key-value heads:

# %%
for kv_heads in (4, 2, 1):
    layer = GroupedQueryAttention(64, 4, 16, kv_heads)
    numbers = sum(weight.numel() for weight in layer.parameters())
    print(f"{kv_heads} key-value heads: {numbers:6,} weights, {2 * kv_heads * 16:4} numbers cached per token")

# %% [markdown]
# ## The data, and the best that anyone can do
#
# A hidden pair of coefficients $(a, b)$ makes each token from the two before, $x_t = a x_{t-2} + b x_{t-1} \bmod 7$;
# with probability 0.1 a step is $x_{t-1} + 1$ instead. The first values are hidden too. The test sequences come from
# generators that no training sequence uses.

# %%
split = make_split(DATA, seed=0)
test = split.test
kinds = obeys_recurrence(test.tokens, test.generators.coefficients, DATA.vocab_size)
for row in range(3):
    marks = ["  ", "  ", *("  " if rule else "+1" for rule in kinds.rule[row, :22].tolist())]
    print("tokens:    ", " ".join(f"{token:2}" for token in test.tokens[row, :24].tolist()))
    print("not by rule", " ".join(marks), "\n")

# %% [markdown]
# Bayes' rule over all 2,401 generators gives the exact distribution of every next token. Nothing can predict better
# on average, so this is the line to measure against.

# %%
optimum = optimal_accuracy(test.tokens, DATA).measured
print("position:", *(f"{position:6}" for position in range(8)), "  ... mean of all 64")
print("optimum: ", *(f"{value:6.3f}" for value in optimum[:8].tolist()), f"  ... {optimum.mean():.4f}")

# %% [markdown]
# Two coefficients need two equations and hence four tokens: before position 3 nobody can know the rule. Later the
# limit is the noise.
#
# ## Training
#
# All features together: two key-value heads for four query heads, a window of 16 in every second layer, four experts
# of which each token passes through two. The budget is that of the lab's quick version, far below the course's 632
# steps.

# %%
model = build_model(ALL_TOGETHER, seed=0)
recipe = QUICK.config(QUICK.experiments[0], seed=0)
print(f"{sum(weight.numel() for weight in model.parameters()):,} weights, {recipe.steps} steps of {recipe.batch_size}")
result = train(model, RecurrenceTask(DATA, split, seed=0), recipe, progress=False)
model.eval()


@in_style
def draw_training():
    """Loss by step, and the test accuracy with its optimum."""
    figure, (left, right) = new_figure(9, 3.2, columns=2)
    steps, losses = zip(*result.losses, strict=True)
    left.plot(steps, losses, **line(0, len(steps)))
    left.set(title="Training loss", xlabel="step", ylabel="nats per token")
    steps, accuracies = zip(*((step, metrics["accuracy"]) for step, metrics in result.evaluations), strict=True)
    right.plot(steps, accuracies, **line(0, len(steps)))
    right.axhline(float(optimum.mean()), color=BLACK, linewidth=2.4)
    right.set(title="Test accuracy, and the optimum above it", xlabel="step", ylabel="accuracy")
    return figure


draw_training()

# %% [markdown]
# ## Do the experts share the work?
#
# The router was given no reason to spread the tokens. How many of the test tokens' choices each expert got, layer by
# layer (a quarter each would be even):

# %%
with torch.no_grad():
    model(test.inputs)
loads = [layer.ffn.load / layer.ffn.load.sum() for layer in model.layers if isinstance(layer.ffn, MixtureOfExperts)]


@in_style
def draw_loads():
    """The share of each expert in each layer."""
    figure, (axes,) = new_figure(7, 3)
    for expert in range(len(loads[0])):
        places = [number + (expert - 1.5) * 0.2 for number in range(len(loads))]
        colour = LINES[expert]["color"]
        shares = [float(load[expert]) for load in loads]
        axes.bar(places, shares, 0.2, label=f"expert {expert}", color=colour, hatch=HATCHES[expert], edgecolor=BLACK)
    axes.axhline(0.25, color=BLACK, linestyle="--")
    axes.set(title="Share of each expert", xlabel="layer", ylabel="share of choices", xticks=range(len(loads)))
    axes.legend(ncols=4, loc="upper center", bbox_to_anchor=(0.5, -0.2))
    return figure


draw_loads()

# %% [markdown]
# They do not: in the first layers two experts take nearly all, and the others hardly learn. An expert that is chosen
# more learns more and is chosen again. The decoder's configuration has a load-balancing loss against this
# (`balance_experts`), which the course's model, and so this one, does without.
#
# ## Accuracy at each position, beside the optimum

# %%
per_position = calc_per_token_acc(model, batches(test.tokens))


@in_style
def draw_positions():
    """Model and optimum, and what lies between them."""
    figure, (above, below) = new_figure(8, 5, rows=2, sharex=True, height_ratios=(3, 2))
    above.plot(optimum, color=BLACK, linewidth=2.4, label=f"optimal ({optimum.mean():.4f})")
    above.plot(per_position, label=f"model ({per_position.mean():.4f})", **line(0, 64))
    above.set(title="Accuracy of the next token at each position", ylabel="accuracy", ylim=(0, 1))
    above.legend(loc="lower right")
    below.plot(optimum.numpy() - per_position, **line(0, 64))
    below.axhline(0, color=BLACK)
    below.set(title="What is missing to the optimum", xlabel="position in the sequence", ylabel="optimal − model")
    return figure


draw_positions()

# %%
gap = optimum.numpy() - per_position
for start, stop in pairwise((0, 3, 12, 64)):
    print(
        f"positions {start:2} to {stop - 1:2}: {gap[start:stop].sum() / 64:.4f} of the {gap.mean():.4f} that is missing"
    )

# %% [markdown]
# The curve has the shape of the optimum: low while the coefficients cannot be known, then a steep rise. What is
# missing is lost mostly where the optimum has already worked the rule out. So a short training leaves the model
# slower and less exact at solving for the coefficients, rather than ignorant of the task; `glassformer lab gpt-oss`
# shows how a longer training closes the gap.
#
# ## Choosing the next token
#
# One context, and the model's distribution of its next token under different rules. The black mark is what the
# optimal predictor says.

# %%
by_rule = (test.inputs[:, 38:40] * test.generators.coefficients).sum(dim=1) % 7
row = int((by_rule != (test.inputs[:, 39] + 1) % 7).nonzero()[0])
context = test.inputs[row : row + 1, :40]
with torch.no_grad():
    logits = model(context)[0, -1]
best_possible = optimal_predictions(context, DATA)[0, -1]
shown = {
    "temperature 0.5": SamplingRule(temperature=0.5),
    "temperature 1": SamplingRule(),
    "temperature 2": SamplingRule(temperature=2.0),
    "temperature 2, top-p 0.8": SamplingRule(temperature=2.0, top_p=0.8),
}


@in_style
def draw_choices():
    """Bars of the model's probabilities, marks of the optimal ones."""
    figure, panels = new_figure(11, 2.8, columns=len(shown), sharey=True)
    for axes, (title, rule) in zip(panels, shown.items(), strict=True):
        axes.bar(range(7), rule.distribution(logits), color=LINES[5]["color"], edgecolor=BLACK)
        axes.plot(range(7), best_possible, "_", color=BLACK, markersize=14, markeredgewidth=2)
        axes.set(title=title, xlabel="next token", xticks=range(7), ylim=(0, 1.05))
    panels[0].set_ylabel("probability")
    return figure


draw_choices()

# %% [markdown]
# Temperature scales all differences at once; top-p cuts the tail off and keeps the proportions of the rest.
#
# ## Whole continuations
#
# Now 200 test sequences, of which the model sees 16 tokens and writes 48 more. We know each sequence's hidden
# coefficients, so every step can be judged: does it follow the rule, is it the previous token plus one, or neither
# (which the process never does)?

# %%
prompts, coefficients = test.tokens[:200, :16], test.generators.coefficients[:200]
found = {"true sequences": behaviour(test.tokens[:200, :64], coefficients, 16)}
for title, rule in RULES.items():
    seeded = SamplingRule(temperature=rule.temperature, top_p=rule.top_p, seed=0)
    new = torch.tensor(generate(model, prompts, 48, rule=seeded))
    found[title] = behaviour(torch.cat([prompts, new], dim=1), coefficients, 16)

print(f"{'':22}{'rule':>8}{'+1':>8}{'neither':>9}{'repeated':>10}{'cycling':>9}")
for title, shares in found.items():
    steps = f"{shares.rule:8.3f}{shares.increment:8.3f}{shares.neither:9.3f}"
    print(f"{title:22}{steps}{shares.repeated:10.3f}{shares.cycling:9.3f}")

# %% [markdown]
# How to read it:
#
# - **Greedy** makes the fewest errors and repeats itself the most: it never takes the unlikely step that the true
#   process takes one time in ten, and a recurrence without noise runs in a cycle.
# - **Temperature** trades errors against variety: a lower one comes nearer to greedy, a higher one hands probability
#   to tokens that the process never makes, and each such error misleads the steps after it.
# - **Nucleus sampling** takes away much of the errors and keeps some of the variety. But it cannot tell a rare true
#   step from an error of the same probability: it cuts by size alone.

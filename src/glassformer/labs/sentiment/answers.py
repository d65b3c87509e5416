"""Written answers to the course's questions, with the evidence of the run: numbers come from the results."""

from __future__ import annotations

from glassformer.labs.sentiment.baselines import FULL_TFIDF
from glassformer.labs.sentiment.recipes import FROM_MINILM, FROM_SCRATCH
from glassformer.labs.sentiment.results import Results
from glassformer.labs.sentiment.wording import alike, listed, percent, recalled, training_seconds, verdict_of


def answers(results: Results) -> list[str]:
    """The course's seven questions (part 6.4), each as a heading with its answer."""
    questions = (
        ("How does attention capture long-range dependencies better than an RNN?", _long_range),
        ("Why several heads instead of one?", _heads),
        ("Where are the computational bottlenecks, and what can be done about them?", _bottlenecks),
        ("Transformers, CNNs and RNNs: when which?", _architectures),
        ("What are the ethical concerns with large language models?", _ethics),
        ("Which developments are exciting, and which concerning?", _future),
        ("What was hard to implement, and what surprised?", _implementation),
    )
    return [
        f"### {number}. {question}\n\n{answer(results)}" for number, (question, answer) in enumerate(questions, start=1)
    ]


def takeaways(results: Results) -> str:
    """The course's five takeaways, as a numbered list."""
    leak, growth, course = results.experiments.leak, results.experiments.growth, results.course
    asked = results.asked
    gap = max(group.largest_gap for group in asked.words.groups)
    texts = (
        "**Attention is a soft lookup, and it is the only place where words meet.** All else in a block treats every "
        "position alone; without attention and positions, a mean over words is what is left.",
        "**Each part has one job, and the residual path joins them.** Positions bring order where it is wanted, norms "
        "keep "
        "sizes, the feed-forward network works on what attention gathered. In the course's model "
        f"{percent(course.parts['embeddings'] / course.num_parameters)} of the parameters are the table of words.",
        "**Cost has two terms.** One grows with the length, one with its square; with the course's sizes the second "
        f"overtakes the feed-forward network at {growth.overtakes:,} tokens, and for a sentence it is next to nothing.",
        "**A number is worth what its split is worth.** The toy set's "
        f"{percent(leak.mean('leaky', 'transformer'))} and the {percent(leak.mean('clean', 'transformer'))} without "
        "the "
        "leak come from the same code.",
        f"**What a classifier has learned must be asked for.** The {asked.model} tells {percent(asked.pairs.overall)} "
        "of "
        f"{len(asked.pairs.pairs)} minimal pairs apart, and one word that should not matter moves the verdict on a "
        "neutral "
        f"sentence by up to {gap:.2f}. Test accuracy shows neither.",
    )
    return "\n".join(f"{number}. {text}" for number, text in enumerate(texts, start=1))


def from_earlier_models(results: Results) -> list[str]:
    """The course's comparison with linear models, neural networks and convolutions."""
    linear, scratch = (results.median(name).measured for name in (FULL_TFIDF.name, FROM_SCRATCH.name))
    pretrained = (
        f" The pretrained encoder gets {percent(results.median(FROM_MINILM.name).measured.test_accuracy)}; it is "
        "larger "
        "too, so the table does not tell what of that is size and what is pretraining."
        if FROM_MINILM.name in results.names
        else ""
    )
    return [
        "**From linear models.** Logistic regression on word counts gives each word one weight and adds them up. That "
        "gets "
        f"{percent(linear.test_accuracy)} here, and one can read every weight. It cannot let one word change another's "
        "meaning, which is what attention adds: the vector of a word becomes a mixture that depends on the others. On "
        f"these texts the encoder from scratch gets {percent(scratch.test_accuracy)} with it.",
        "**From multilayer perceptrons.** A feed-forward network of a block *is* a two-layer perceptron, the same one "
        "at "
        "every position. What is new around it: weights between positions that are computed from the text instead of "
        "learned for fixed places, a residual path, and norms, which let many such layers be stacked.",
        "**From convolutions.** A convolution mixes neighbours with fixed weights and needs depth to reach far; it "
        "shares "
        "with attention that all places are worked on at once and by the same weights. "
        + verdict_of(results, "convolutions", FROM_SCRATCH.name, "On these texts {first} {relation} {second}.")
        + pretrained,
    ]


def looking_forward(results: Results) -> str:
    """What one would explore next, and why."""
    growth = results.experiments.growth
    plain, windowed = growth.growths[2:]
    kinds = results.median(results.asked.model).kinds
    hardest = sorted(kinds, key=lambda kind: kinds[kind])[:2]
    told = listed([f"{kind} ({percent(kinds[kind])})" for kind in hardest])
    return (
        "Three questions follow from what was measured. First, length: a window of 128 brings the exponent of a "
        "decoder "
        f"layer's operations from {growth.exponents(plain)['operations']:.2f} to "
        f"{growth.exponents(windowed)['operations']:.2f} at the longest texts; which heads need more than their "
        "window? "
        "Second, what pretraining brings: the same architecture with and without it, at the same size, and the same "
        "heads "
        f"before and after fine-tuning. Third, meaning that is not in the words: {told} are what the best encoder "
        "reads "
        "worst, and it is open whether more data, another objective or only size teaches them."
    )


def reflection(results: Results) -> str:
    """The course's reflection, 200 to 300 words."""
    leak, padding = results.experiments.leak, results.experiments.padding
    best = results.median(results.asked.model).measured
    return (
        "The mechanism is small. Three products and a softmax fit on a page, and everything that made it powerful lies "
        "around it: depth that a residual path makes trainable, sizes that norms keep, and data. Having each part as a "
        "thing of its own, compared with an independent one, changed how we read the others' descriptions. Much that "
        "is said about attention turned out to be about something else.\n\n"
        "What surprised us was how quietly things go wrong. The course's model averages over padding and trains "
        f"without complaint; only when the same text was filled up further did its probabilities move, by up to "
        f"{padding.largest_change('seen'):.2f}. Its validation set was its training set, and the curve looked perfect: "
        f"{percent(leak.mean('leaky', 'transformer'))}, against {percent(leak.mean('clean', 'transformer'))} on "
        "sentences that were new. Nothing crashed and no test failed. Only a question that could have come out "
        "otherwise "
        "showed it.\n\n"
        f"The same holds for what is deployed. Our best model gets {percent(best.test_accuracy)} of its test texts "
        "right, "
        "and that number says nothing about irony, about a negation, or about whether a name in a neutral sentence "
        "moves "
        "the verdict. Those had to be asked one by one, and systems that decide about people are mostly not asked. "
        "Progress has been fast because models can be scaled without being understood. Using them responsibly asks for "
        "the slower half: splits without leaks, baselines that could win, measured calibration, and an account of what "
        "a "
        "model was never tested on. Small models are where one learns to do that, since there every claim can be "
        "checked "
        "in seconds."
    )


def _long_range(results: Results) -> str:
    reach = results.experiments.reach
    furthest = reach.distances[-1]
    by_name = {each.name: each for each in reach.influences}
    plain = min(by_name.values(), key=lambda each: each.relative[-1])
    attention = next(each for name, each in by_name.items() if "block" in name)
    return (
        "In a recurrence, what the first word says reaches the last only through every state between, and the gradient "
        "comes back the same way: a product of as many Jacobians as there are steps, which shrinks or grows "
        "exponentially. Attention joins any two positions in one step, so the path has length 1 whatever the distance. "
        f"Measured before training, one step further back multiplies the gradient of the last state by "
        f"{plain.per_step:.3f} in the {plain.name} and by {attention.per_step:.3f} in the encoder; {furthest} steps "
        "back "
        f"that leaves {plain.relative[-1]:.0e} and {attention.relative[-1]:.2f} of what there was at one step. Gates "
        "(LSTM, GRU) can learn to hold a state open, and do not shorten the path. The price is that attention dilutes: "
        f"with n words each starts at about 1/n. {recalled(results)}"
    )


def _heads(results: Results) -> str:
    heads = results.experiments.heads
    counts = sorted({run.num_heads for run in heads.by_count})
    accuracies = ", ".join(
        f"{count} {'head' if count == 1 else 'heads'} {percent(heads.accuracy(count))}" for count in counts
    )
    most = max(counts)
    differences = [each.divergence for run in heads.by_count if run.num_heads == most for each in run.differences]
    entropies = [each.entropy for run in heads.by_count if run.num_heads == most for each in run.spreads]
    best, worst = max(map(heads.accuracy, counts)), min(map(heads.accuracy, counts))
    matter = (
        "so on texts where few words decide, one head does nearly as well as many, and the reason for many is not "
        "accuracy here"
        if alike(best, worst, heads.num_validated)
        else "so the number of heads is worth tuning even here"
    )
    return (
        "One softmax gives one distribution: a head that looks at the negation does not look at the adjective, or it "
        "looks at both by halves. Several heads of the same total width cost the same operations and can attend to "
        "several things at once, each with its own idea of what is relevant; the output matrix mixes what they found. "
        f"Evidence: with the same width of {heads.hidden_dim} and the validation texts of the table, {accuracies}; "
        f"{matter}. "
        f"How different heads become: with {most} of them, the mean Jensen-Shannon divergence between two heads' "
        "weights "
        f"is {sum(differences) / len(differences):.2f} nats of at most 0.69, and their entropies range from "
        f"{min(entropies):.2f} to {max(entropies):.2f} nats where equal attention to all words would have "
        f"{heads.uniform_entropy:.2f}. Which relation a head stands for is a further question, which its weights alone "
        "do not answer."
    )


def _bottlenecks(results: Results) -> str:
    growth = results.experiments.growth
    full, held, plain, window = growth.growths
    last = full.lengths[-1]
    times = plain.measured.seconds[-1], window.measured.seconds[-1]
    windows = (
        f"a window of 128 takes {1e3 * times[1]:,.0f} ms in a decoder's layer that takes {1e3 * times[0]:,.0f} ms "
        "without"
    )
    return (
        "Scores and values take a number of operations quadratic in the length, and keeping the weights of every "
        "head takes quadratic memory. Everything else is linear in the length. For one layer of the course's sizes the "
        f"quadratic part overtakes the feed-forward network at {growth.overtakes:,} tokens. Measured at {last:,} "
        "tokens, a "
        f"forward pass that could be trained holds {held.measured.peak_bytes[-1] / 2**20:,.0f} MiB when the weights "
        "are "
        f"kept and {full.measured.peak_bytes[-1] / 2**20:,.0f} MiB with a fused kernel, which computes the same in "
        "blocks; "
        f"{windows}. What helps: fused kernels (memory becomes linear, exactly), windows and other sparse patterns "
        "(fewer "
        "operations, at the price of what lies outside), keys and values shared by groups of heads (a smaller cache), "
        "linear attention (another function, with a fixed state), experts (more parameters for the same operations), "
        "fewer bits for each number. For short texts none of it matters: there the feed-forward network and the table "
        "of "
        "words are what costs."
    )


def _architectures(results: Results) -> str:
    told = "; ".join(
        f"{name} {percent(results.median(name).measured.test_accuracy)} in {training_seconds(results, name):.0f} s"
        for name in results.names
    )
    return (
        "**Transformers** work on all positions at once, join any two in one step, can be looked into, and most "
        "published "
        "pretrained weights are theirs; they cost a quadratic term, know no order of their own and want data. "
        "**CNNs** have the right prior where neighbours matter and a pattern means the same wherever it is: images, "
        "audio, short texts; they are cheap, and reach far only by depth. **RNNs** keep a state of fixed size: the "
        "choice "
        "for streams, for online learning and for devices with little memory; training cannot be spread over the "
        "length, "
        "and what is far back has a long way. On the texts of the table (median seed, median time on this machine): "
        f"{told}. We would start with the counts, take a pretrained transformer where accuracy pays for it, a CNN for "
        "signals and images of modest size, and a recurrent or state-space model where text never ends."
    )


def _ethics(results: Results) -> str:
    worst = max(results.asked.words.groups, key=lambda group: group.largest_gap)
    moved = (
        f"exchanging one {worst.group} for another moves the probability of praise by up to {worst.largest_gap:.2f} "
        f"(“{worst.template}”: {worst.low_word} against {worst.high_word}), and in {percent(worst.flipped)} of such "
        "sentences the verdict depends on the word"
    )
    shown = (
        f"Even this small one does: in sentences that say nothing good or bad, {moved}."
        if worst.largest_gap >= 0.1
        else f"In this small one little of it shows: in sentences that say nothing good or bad, {moved}."
    )
    return (
        f"**Bias.** A model learns what its texts associate, groups of people included. {shown} A few sentences do not "
        "measure a bias; they show that it can be asked about, and that accuracy does not. **Misinformation.** Fluency "
        "costs nothing now, so text is no evidence that its author knew or meant it; provenance has to come from "
        "elsewhere. "
        "**Economic impact.** Routine writing, translation and code become cheap; who gains depends on who owns the "
        "models and how the change is shared, which no architecture decides. **Privacy and security.** Models remember "
        "rare strings of their training texts and obey instructions hidden in what they read; training data needs "
        "consent "
        "and care, and a model's output must be treated as untrusted input."
    )


def _future(results: Results) -> str:
    best, pairs = results.median(results.asked.model).measured, results.asked.pairs
    return (
        "**Exciting.** Models that read proteins, weather and mathematics with the same blocks; tutoring and "
        "translation "
        "in languages that had neither; captions and speech for people who need them; and interpretability: that one "
        "can "
        "open a trained model and find mechanisms, as with the heads of this project that are built by hand and "
        "proved. "
        "**Concerning.** Decisions handed to systems that were measured on average accuracy alone: this one gets "
        f"{percent(best.test_accuracy)} of its test texts right, and tells {percent(pairs.overall)} of its minimal "
        "pairs "
        "apart. Persuasion at scale, surveillance made cheap, power in the hands of those who can pay for training, "
        "and "
        "evaluation that leaks into training, which makes progress look faster than it is. Open weights, published "
        "evaluations and rules for uses rather than for matrices would help."
    )


def _implementation(results: Results) -> str:
    padding, norms = results.experiments.padding, results.experiments.norms
    width = next(each for each in norms.widths if each.width == norms.hidden_dim)
    heads = results.experiments.heads
    positions = (
        "Positions, on the other hand, bring little on sentences: "
        if alike(heads.accuracy_with("sinusoidal"), heads.accuracy_with("none"), heads.num_validated)
        else "Positions make more of a difference than one would guess on sentences: "
    )
    return (
        "Shapes are quickly right; masks are not. Padding has to be left out twice, of attention and of the mean, and "
        f"forgetting either changes no shape and raises no error: it moved probabilities by up to "
        f"{padding.largest_change('seen'):.2f} (with both in place, {padding.largest_change('left out'):.0e}). "
        "Formulas that look alike are not: two LayerNorms differ by "
        f"{percent(1 - width.predicted_ratio)} at width {width.width}, and by far more where a position hardly "
        "varies. "
        f"{positions}{percent(heads.accuracy_with('sinusoidal'))} with and {percent(heads.accuracy_with('none'))} "
        "without. "
        "And the hardest part was none of the layers. It was a comparison that could have come out against the "
        "transformer: split by text, chosen on validation texts only, tested once."
    )

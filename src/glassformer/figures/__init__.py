"""Figures of attention: everything that draws with matplotlib, in one style.

``attention_maps`` draws heads as heat maps: one, many, or two compared. ``coloured_words`` draws a
number for each word of a text; ``single_heads`` a head's matrices and circuits; ``heat_maps`` any
matrix. Functions return matplotlib figures, which ``style.save_figure`` writes. Functions with an
argument ``ax`` draw there.
"""

from glassformer.errors import naming_extras

with naming_extras():
    import matplotlib as matplotlib

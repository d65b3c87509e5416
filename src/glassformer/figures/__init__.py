"""Figures of attention: everything that draws with matplotlib, in the style of
:mod:`glassformer.figures.style`.

``attention_maps`` draws heads as heat maps, one, many or two compared; ``coloured_words`` a number
for each word of a text; ``single_heads`` a head's matrices and circuits; ``heat_maps`` any matrix.
Functions return matplotlib figures, which ``style.save_figure`` writes; those with an argument
``ax`` draw there.
"""

from glassformer.errors import naming_extras

with naming_extras():
    import matplotlib as matplotlib

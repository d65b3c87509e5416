"""Figures of attention, experts and whole models. Nothing else in ``observe`` imports matplotlib.

==================  ====================  ============================================================================
module              function              shows
==================  ====================  ============================================================================
``attention_maps``  ``attention_map``     one head as a heat map, [query, key]
..                  ``attention_grid``    many heads, layer x head
..                  ``attention_mosaic``  all heads of a model in one image
..                  ``cross_attention``   a decoder's attention to its source
..                  ``compare_heads``     two heads and their difference
``coloured_words``  ``coloured_text``     a number for each word, such as the attention of one query
..                  ``attention_rows``    the attention of several queries, a text of coloured words each
``head_tables``     ``head_table``        one number per head, such as its entropy or the share of its sink
..                  ``head_spread``       entropy and mean distance of every head
..                  ``head_targets``      every head's share on the first token, itself, the previous one, and the sink
..                  ``expert_load``       how evenly every layer's router distributes tokens
..                  ``router_load``       the same, next to a table of tokens by layer and expert
==================  ====================  ============================================================================

The numbers come from :func:`~glassformer.observe.capture.capture` and
:func:`~glassformer.observe.attention_measures.head_measures`. All functions return matplotlib figures in the style of
:mod:`glassformer.figures.style`, whose ``save_figure`` writes PNG, SVG and PDF. Functions with an argument
``ax`` draw there. ``single_heads`` draws single heads and their circuits, ``diagrams`` models block by block,
``complexity_curves`` what they cost, ``timeline`` when they were published, ``text_classifiers`` their training and the
effects of tokens, and ``illustrations`` what needs no model.
"""

from glassformer.errors import naming_extras

with naming_extras():
    import matplotlib as matplotlib

"""Figures of attention, experts and whole models. Nothing else in ``observe`` imports matplotlib.

=====================  ====================================================================================
figure                 shows
=====================  ====================================================================================
``attention_map``      one head as a heat map, [query, key]
``attention_grid``     many heads, layer x head
``attention_mosaic``   all heads of a model in one image
``cross_attention``    a decoder's attention to its source
``compare_heads``      two heads and their difference
``query_text``         the attention of one query, as coloured words
``attention_rows``     the attention of several queries, a text of coloured words each
``head_table``         one number per head, such as its entropy, layer x head
``head_spread``        entropy and mean distance of every head
``head_targets``       every head's share on the first token, the query's own, the previous one, and the sink
``sink_shares``        every head's share on its sink
``expert_load``        how evenly every layer's router distributes tokens
``router_load``        the same, next to a table of tokens by layer and expert
=====================  ====================================================================================

The numbers come from :func:`~glassformer.observe.capture.capture` and
:func:`~glassformer.observe.attention_measures.head_measures`. All functions return matplotlib figures in the style of
:mod:`glassformer.observe.figures.style`, whose ``save_figure`` writes PNG, SVG and PDF. Functions with an argument
``ax`` draw there.
"""

from glassformer.observe.attention_measures import head_measures
from glassformer.observe.figures.attention_maps import (
    attention_grid,
    attention_map,
    attention_mosaic,
    compare_heads,
    cross_attention,
)
from glassformer.observe.figures.coloured_words import attention_rows, query_text
from glassformer.observe.figures.head_tables import (
    expert_load,
    head_spread,
    head_table,
    head_targets,
    router_load,
    sink_shares,
)
from glassformer.observe.figures.style import save_figure

__all__ = [
    "attention_grid",
    "attention_map",
    "attention_mosaic",
    "attention_rows",
    "compare_heads",
    "cross_attention",
    "expert_load",
    "head_measures",
    "head_spread",
    "head_table",
    "head_targets",
    "query_text",
    "router_load",
    "save_figure",
    "sink_shares",
]

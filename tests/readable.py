"""What holds for every figure."""

from itertools import combinations

from matplotlib.figure import Figure
from matplotlib.text import Text


def check_readable(figure: Figure) -> None:
    """Fail for a figure with something cut off, or with one text on another."""
    figure.draw_without_rendering()
    for axis in (axis for ax in figure.axes for axis in (ax.xaxis, ax.yaxis)):
        low, high = sorted(axis.get_view_interval())
        for tick in (*axis.get_major_ticks(), *axis.get_minor_ticks()):
            # What lies outside is not drawn, but stands in the list of texts.
            if not low <= tick.get_loc() <= high:
                tick.label1.set_visible(False)
                tick.label2.set_visible(False)
    pixels = figure.get_tightbbox().extents * figure.dpi
    assert pixels[0] >= -0.5, pixels
    assert pixels[1] >= -0.5, pixels
    assert pixels[2] <= figure.bbox.width + 0.5, pixels
    assert pixels[3] <= figure.bbox.height + 0.5, pixels
    texts = [text for text in figure.findobj(Text) if text.get_visible() and text.get_text()]
    boxes = [(text.get_text(), text.get_window_extent()) for text in texts]
    assert all(max(box.width, box.height) >= 5 for _, box in boxes), "letters of less than 5 pixels"
    clashes = [
        (first, second)
        for (first, one), (second, other) in combinations(boxes, 2)
        # A line of text has some room above and below its letters.
        if min(one.x1, other.x1) - max(one.x0, other.x0) > 1
        and min(one.y1, other.y1) - max(one.y0, other.y0) > 3
    ]
    assert clashes == [], clashes

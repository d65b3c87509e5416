"""Heads that begin with zeros and programs with a blank: verdicts follow, the address and a file
carry the answer.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from playwright.sync_api import Locator, Page, expect

from glassformer.course.grading import Grade, grade_file
from glassformer.explorer import messages as m
from glassformer.explorer.saving.saved_page import save
from glassformer.explorer.state import from_words
from glassformer.handcraft.weight_files import read_head

from .attention_page import state
from .conftest import Go, check_accessible, check_fits, settled

FILLED = "select(indices, indices, operator.lt)"


def certificate(page: Page) -> Locator:
    return page.get_by_role("region", name="Certificate")


def graded(page: Page, name: str, path: Path) -> Grade:
    with page.expect_download() as waiting:
        page.get_by_role("button", name=f"Download {name}").click()
    assert waiting.value.suggested_filename == name
    waiting.value.save_as(path)
    (grade,) = grade_file(path)
    return grade


@pytest.mark.slow
def test_an_exercise_begins_with_zeros_and_the_link_carries_the_answer(
    page: Page, go: Go, backend: Any, tmp_path: Path
) -> None:
    go(page)
    exercises = page.get_by_role("region", name="Exercises")
    title = next(card.title for card in backend.catalogue().models if card.name == "identity")
    exercises.get_by_role("link", name=title).click()
    settled(page)
    verdict = certificate(page)
    expect(verdict).to_have_attribute("data-verdict", "fails")
    expect(page.get_by_text("Nothing typed yet")).to_be_visible()
    assert state(page, lambda words: "exercise" in words)["model"] == "identity"
    check_accessible(page)

    design = backend.answer("head", m.AskHead(model="identity")).weights.model_dump(
        exclude_none=True
    )
    cells = (
        (name, *place, value)
        for name, matrix in design.items()
        for place, value in np.ndenumerate(matrix)
    )
    wanted = {
        f"{name}.{row}.{column}": str(value) for name, row, column, value in cells if value != 0
    }
    # Without one of its numbers it fails.
    last = next(name for name in wanted if name.startswith("Km"))
    cells = {name: value for name, value in wanted.items() if name != last}
    go(page, model="identity", view="design", exercise="true", cells=json.dumps(cells))
    expect(verdict).to_have_attribute("data-verdict", "fails")
    wrong = graded(page, "head.json", tmp_path / "head.json")
    assert (wrong.lab, wrong.exercise, wrong.points, wrong.status) == (
        "page",
        "identity",
        0,
        "verified",
    )
    go(page, model="identity", view="design", exercise="true", cells=json.dumps(wanted))
    expect(verdict).to_have_attribute("data-verdict", "holds")
    assert graded(page, "head.json", tmp_path / "head.json").points == 1
    assert read_head(tmp_path / "head.json").Km.tolist() == design["Km"]
    page.get_by_role("button", name="Start again").click()
    expect(verdict).to_have_attribute("data-verdict", "fails")
    assert "cells" not in state(page, lambda words: "cells" not in words)


def test_a_program_begins_with_a_blank_and_the_verdict_follows(
    page: Page, go: Go, tmp_path: Path
) -> None:
    go(page)
    page.get_by_role("region", name="Exercises").get_by_role(
        "link", name="Sort", exact=True
    ).click()
    settled(page)
    text = page.get_by_role("textbox", name="Your program")
    blank = text.input_value()
    assert blank.count("___") == 1
    expect(certificate(page)).to_have_attribute("data-verdict", "undecided")
    expect(page.locator(".fault")).to_contain_text("___")
    # which would give the answer away
    expect(page.get_by_role("region", name="Heads")).to_have_count(0)
    check_accessible(page)
    check_fits(page)
    assert graded(page, "program-sort.json", tmp_path / "a.json").points == 0

    text.fill(blank.replace("___", "everything"))
    expect(certificate(page)).to_have_attribute("data-verdict", "fails")
    failing = certificate(page).locator("code").first.inner_text()
    wrong = graded(page, "program-sort.json", tmp_path / "a.json")
    assert (wrong.points, wrong.status) == (0, "verified")
    assert f"shortest sequence that fails: {' '.join(failing)}\n" in wrong.feedback
    page.get_by_role("button", name=f"Show {failing}").click()
    expect(page.get_by_label("Text", exact=True)).to_have_value(failing)
    expect(page.locator('.positions i[data-right="false"]').first).to_be_visible()

    text.fill(blank.replace("___", FILLED))
    expect(certificate(page)).to_have_attribute("data-verdict", "holds")
    expect(certificate(page)).to_contain_text("1,364 of 1,364")
    expect(page.locator('.positions i[data-right="false"]')).to_have_count(0)
    right = graded(page, "program-sort.json", tmp_path / "a.json")
    assert (right.lab, right.exercise, right.points, right.status) == (
        "page",
        "program-sort",
        1,
        "verified",
    )
    check_accessible(page)

    words = state(page, lambda words: FILLED in words.get("attempt", ""))
    go(page, **words)
    expect(text).to_have_value(blank.replace("___", FILLED))
    expect(certificate(page)).to_have_attribute("data-verdict", "holds")
    page.get_by_role("button", name="Start again").click()
    expect(text).to_have_value(blank)
    assert "attempt" not in state(page, lambda words: "attempt" not in words)


def test_no_verdict_is_of_another_text_however_long_one_types(page: Page, go: Go) -> None:
    go(page, model="program-histogram", view="program", exercise="true", attempt="")
    text = page.get_by_role("textbox", name="Your program")
    expect(text).to_have_value("")
    expect(certificate(page)).to_have_attribute("data-verdict", "undecided")
    right = "selector_width(select(tokens, tokens, operator.eq))"
    text.press_sequentially(right, delay=5)
    expect(certificate(page)).to_have_attribute("data-verdict", "holds")
    text.press_sequentially(" + 1")
    assert certificate(page).get_attribute("data-verdict") != "holds"
    expect(certificate(page)).to_have_attribute("data-verdict", "fails")
    for typed in ("(" * 300, "tokens\n" * 400, "'", "a = a", "while True: pass", "tokens + 1"):
        text.fill(typed)
        settled(page)
        expect(certificate(page)).to_have_attribute("data-verdict", "undecided")
        expect(page.locator(".fault")).to_be_visible()
    text.fill(right)
    expect(certificate(page)).to_have_attribute("data-verdict", "holds")


def test_a_token_that_looks_like_the_wanted_number_is_told_apart(page: Page, go: Go) -> None:
    go(page, model="program-parity", view="program", exercise="true", attempt="tokens")
    told = "0 (one is a token, the other a number)"
    expect(certificate(page)).to_contain_text(f"at position 0 the program gives 0, expected {told}")
    go(page, model="program-parity", view="program", exercise="true", attempt="tokens", text="0")
    expect(page.locator(".positions button")).to_have_attribute("title", f"defined as {told}")


def test_a_saved_page_keeps_the_verdict_that_was_shown_and_judges_no_other_program(
    page: Page, backend: Any, tmp_path: Path
) -> None:
    words = {"model": "program-sort", "view": "program", "exercise": "true", "attempt": "tokens"}
    file = tmp_path / "page.html"
    save(backend, from_words(words), file)
    page.goto(file.as_uri())
    settled(page)
    text = page.get_by_role("textbox", name="Your program")
    expect(text).to_have_value("tokens")
    expect(certificate(page)).to_have_attribute("data-verdict", "fails")
    (blank,) = (card.blank for card in backend.catalogue().models if card.name == "program-sort")
    text.fill(blank.replace("___", FILLED))
    expect(certificate(page)).to_have_attribute("data-verdict", "undecided")
    expect(certificate(page)).to_contain_text("This file does not judge programs")
    expect(page.locator(".fault")).to_have_count(0)
    assert graded(page, "program-sort.json", tmp_path / "a.json").points == 1
    text.fill("tokens")
    expect(certificate(page)).to_have_attribute("data-verdict", "fails")
    # The compiled program is shown and reads other texts.
    page.evaluate("location.hash = '#exercise=false&text=432'")
    settled(page)
    expect(page.locator(".positions b").first).to_have_text("2")
    expect(certificate(page)).to_have_attribute("data-verdict", "holds")

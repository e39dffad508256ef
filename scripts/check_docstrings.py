"""Check that public docstrings of the package give units, errors and sources.

ruff checks that docstrings exist and how they look. This script checks what ruff cannot see:

- docstring: a public function has a docstring, unless it implements a method of a base class or of
  a Protocol that has one.
- error: an error that the body of a public function raises by `raise X(...)` is named in the
  docstring of the function, of its class or of a base.
- unit: a number that is a time, size or rate by its name has its unit in its name, its note or a
  docstring.
- source: a module of `core/` that names an algorithm names a source too.

Prints one line per finding and exits 1 if there is any.

    python -m scripts.check_docstrings
"""

from __future__ import annotations

import ast
import re
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from scripts.check_language import ROOT, Finding

MEASURED = re.compile(
    r"(^|_)(seconds|timeout|delay|age|every|ttl|interval|deadline|patience|retention|period|grace"
    r"|size|bytes|rate)$"
)
"""Names of numbers that have a unit."""
UNIT = re.compile(
    r"\b((nano|micro|milli)?seconds?|minutes?|hours?|days?|ms|us|ns|s|bytes?|[KMG]i?B|bits"
    r"|characters|tasks|triggers|rows|entries|messages|records|attempts|keys|cells|lanes|items"
    r"|files|threads|processes|share|fraction|factor|ratio|per)\b",
    re.IGNORECASE,
)
NAMED_UNIT = re.compile(
    r"(^|_)(seconds|micros|millis|nanos|minutes|hours|days|ms|us|ns|bytes)(_|$)"
)
NUMBER = re.compile(r"\b(int|float)\b")
CONTAINER = re.compile(r"^(dict|Mapping|Callable)\b")
ALGORITHM = re.compile(
    r"\b(fair queue?ing|sketch|rendezvous|token bucket|cell rate|flow control|UUIDv7|jitter"
    r"|exponential (backoff|smoothing)|AIMD|reservoir|stride scheduling|consistent hashing)\b",
    re.IGNORECASE,
)
"""Words that show that a module implements a published algorithm."""
SOURCE = re.compile(r"\b(19|20)\d\d\b|\bRFC \d+|docs/|https?://|`fairlead\.|\b[Ss]ee \S")
"""Words that show a source: a year, an RFC, a document, a link or another module."""
UNNAMED = {"NotImplementedError", "AssertionError", "StopIteration", "KafkaException"}
"""Errors that no docstring names: methods that a subclass writes, defects of the program, the ends
of generators, and an error of a driver that the code around it turns into StoreUnavailable."""
COMMANDS = ("/cli/", "/commands/")
"""Folders whose docstrings are the text of `--help`; a user sees the message of the error."""

Function = ast.FunctionDef | ast.AsyncFunctionDef


class Known(NamedTuple):
    """Classes of the package by name, and the docstrings of the methods of Protocols."""

    classes: dict[str, list[ast.ClassDef]]
    promises: dict[str, list[str]]

    def bases(self, node: ast.ClassDef) -> Iterator[ast.ClassDef]:
        """Yield the class and its bases, nearest first."""
        waiting, seen = [node], set()
        while waiting:
            current = waiting.pop(0)
            if id(current) not in seen:
                seen.add(id(current))
                yield current
                for base in current.bases:
                    waiting += self.classes.get(last_name(base), [])


def last_name(node: ast.expr) -> str:
    """Return the last part of a dotted name, without type parameters or arguments."""
    return re.sub(r"[\[(].*", "", ast.unparse(node), flags=re.DOTALL).rpartition(".")[2]


def text_of(node: ast.AST | None) -> str:
    """Return the docstring of a definition in one line; "" without one."""
    if not isinstance(node, ast.Module | ast.ClassDef | Function):
        return ""
    return " ".join((ast.get_docstring(node) or "").split())


def methods(node: ast.ClassDef) -> list[Function]:
    """Return the methods of a class."""
    return [each for each in node.body if isinstance(each, Function)]


def read(sources: dict[str, str]) -> tuple[dict[str, ast.Module], Known]:
    """Parse the modules by path, and collect what their definitions inherit."""
    trees = {path: ast.parse(source) for path, source in sources.items()}
    known = Known(defaultdict(list), defaultdict(list))
    for tree in trees.values():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                known.classes[node.name].append(node)
                if "Protocol" in map(last_name, node.bases):
                    for method in methods(node):
                        if text_of(method):
                            known.promises[method.name] += [text_of(method), text_of(node)]
    return trees, known


def functions(
    body: list[ast.stmt], owner: ast.ClassDef | None = None
) -> Iterator[tuple[ast.ClassDef | None, Function]]:
    """Yield the public functions, each with its class."""
    for node in body:
        if isinstance(node, Function) and (
            not node.name.startswith("_") or node.name == "__init__"
        ):
            yield owner, node
        elif isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            yield from functions(node.body, node)


def own_nodes(function: Function) -> Iterator[ast.AST]:
    """Yield the nodes of a function without those of functions and classes inside it."""
    waiting: list[ast.AST] = list(function.body)
    while waiting:
        node = waiting.pop()
        yield node
        if not isinstance(node, ast.ClassDef | Function | ast.Lambda):
            waiting.extend(ast.iter_child_nodes(node))


def check_function(
    path: str, owner: ast.ClassDef | None, node: Function, known: Known
) -> Iterator[Finding]:
    """Yield a finding for each thing that is missing in the docstring of a function and in those it
    inherits."""
    if any(re.search(r"(overload|setter)$", ast.unparse(each)) for each in node.decorator_list):
        return
    bases = list(known.bases(owner)) if owner is not None else []
    promises = list(known.promises[node.name]) if owner is not None else []
    promises += [text_of(m) for base in bases for m in methods(base) if m.name == node.name]
    own = text_of(node)
    if not own and node.name != "__init__" and not any(promises):
        yield Finding(path, node.lineno, "docstring", f"`{node.name}` has none")
    inherited = [*promises, *map(text_of, bases)]
    for name in re.findall(r"^See `(\w+)\.\w+`", own):
        inherited += [text_of(m) for c in known.classes[name] for m in [c, *methods(c)]]
    text = " ".join([own, *inherited])
    is_command = any(folder in path for folder in COMMANDS)
    for each in () if is_command else own_nodes(node):
        if isinstance(each, ast.Raise) and isinstance(each.exc, ast.Call):
            error = last_name(each.exc.func)
            is_named = re.search(rf"\b{error}\b", text) or error in UNNAMED
            if error[:1].isupper() and not is_named:
                yield Finding(path, each.lineno, "error", f"`{node.name}` raises {error}: name it")
    arguments = node.args
    for each in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs):
        if lacks_unit(each.arg, each.annotation, [text]):
            yield Finding(path, each.lineno, "unit", f"`{each.arg}` of `{node.name}` has none")


def lacks_unit(name: str, annotation: ast.expr | None, texts: Iterable[str]) -> bool:
    """Return whether a number needs a unit by its name, and neither its name nor a text has one."""
    kind = ast.unparse(annotation) if annotation is not None else ""
    if not NUMBER.search(kind) or CONTAINER.match(kind) or not MEASURED.search(name):
        return False
    return not NAMED_UNIT.search(name) and not any(UNIT.search(text) for text in (kind, *texts))


def check_values(
    path: str, lines: list[str], body: list[ast.stmt], class_text: str
) -> Iterator[Finding]:
    """Yield the public constants and attributes of a body that lack a unit. `class_text`: the
    docstring of the class."""
    for index, node in enumerate(body):
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            yield from check_values(path, lines, node.body, text_of(node))
        target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
        if not isinstance(target, ast.Name) or target.id.startswith("_"):
            continue
        annotation = getattr(node, "annotation", None)
        if annotation is None and is_number(getattr(node, "value", None)):
            annotation = ast.Name("int")
        following = body[index + 1] if index + 1 < len(body) else None
        note = ast.unparse(following) if isinstance(following, ast.Expr) else ""
        comment = lines[(node.end_lineno or 1) - 1].partition("#")[2]
        if lacks_unit(target.id.lower(), annotation, [note, comment, class_text]):
            yield Finding(path, node.lineno, "unit", f"`{target.id}` has none")


def is_number(node: ast.expr | None) -> bool:
    """Return whether an expression is arithmetic on numbers."""
    if isinstance(node, ast.BinOp):
        return is_number(node.left) or is_number(node.right)
    return isinstance(node, ast.Constant) and type(node.value) in (int, float)


def check(sources: dict[str, str]) -> Iterator[Finding]:
    """Yield what is wrong with modules, given by path."""
    trees, known = read(sources)
    for path, tree in trees.items():
        for owner, node in functions(tree.body):
            yield from check_function(path, owner, node, known)
        yield from check_values(path, sources[path].splitlines(), tree.body, "")
        text = text_of(tree)
        if "/core/" in path and ALGORITHM.search(text) and not SOURCE.search(text):
            yield Finding(path, 1, "source", "names an algorithm and no source")


def main(folder: Path = ROOT / "src" / "fairlead") -> int:
    """Print the findings and return the exit status: 1 if there is any."""
    paths = sorted(folder.rglob("*.py"))
    findings = list(check({str(each.relative_to(ROOT)): each.read_text() for each in paths}))
    print(*findings, sep="\n", end="\n" if findings else "")
    print(f"{len(findings)} findings", file=sys.stderr)
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())

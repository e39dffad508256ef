"""Print figures about the source tree, to compare one commit with another.

Usage: python scripts/measure_tree.py [SOURCE_FOLDER]   (default: src/fairlead)

To measure an older commit: git archive COMMIT src | tar x -C FOLDER, then name FOLDER/src/fairlead.

- lines, files: of every .py file.
- tokens per code line: tokens of type NAME, OP, NUMBER and STRING (an f-string counts as one or as
  its parts, by the version of Python), divided by the lines on which such a token starts.
- signatures: functions and methods with eight or more parameters, `self` and `cls` not counted.
- classes: classes with 15 or more attributes. An attribute is a name declared in the class body
  with an annotation, or assigned as `self.name` in `__init__`. Classes that only carry data are
  listed separately.
- kind checks: lines outside the backends that ask for the kind of a queue, channel or store.
- cycles: sets of modules that import each other, directly or over others. Imports in functions
  count, imports under TYPE_CHECKING do not.
"""

from __future__ import annotations

import ast
import re
import sys
import tokenize
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

MANY_PARAMETERS = 8
MANY_ATTRIBUTES = 15
BACKENDS = frozenset({"backends", "stores", "channels", "coordination", "sharded"})
KIND_CHECK = re.compile(
    r"\bis_ordered\b|channel\.(orders|decides_order)\b|isinstance\([^()]*SqlTaskStore|dialect =="
)
CODE = frozenset({tokenize.NAME, tokenize.OP, tokenize.NUMBER, tokenize.STRING})
DATA = re.compile(r"Struct|NamedTuple|TypedDict|Protocol|Enum")

Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Module:
    """One source file."""

    name: str
    path: Path
    text: str
    tree: ast.Module

    @property
    def is_package(self) -> bool:
        """Return whether this is the __init__ of a package."""
        return self.path.name == "__init__.py"


def read(root: Path) -> list[Module]:
    """Return every module below the folder of a package."""
    modules = []
    for path in sorted(root.rglob("*.py")):
        parts = path.relative_to(root.parent).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        text = path.read_text()
        modules.append(Module(name, path, text, ast.parse(text)))
    return modules


def tokens_per_line(modules: Sequence[Module]) -> float:
    """Return the tokens of code per line that has any."""
    tokens = lines = 0
    for module in modules:
        with module.path.open("rb") as file:
            starts = [t.start[0] for t in tokenize.tokenize(file.readline) if t.type in CODE]
        tokens += len(starts)
        lines += len(set(starts))
    return tokens / lines


def parameters(function: Function) -> int:
    """Return the number of parameters, `self` and `cls` not counted."""
    given = function.args
    names = [arg.arg for arg in [*given.posonlyargs, *given.args, *given.kwonlyargs]]
    return len([name for name in names if name not in ("self", "cls")])


def wide_signatures(modules: Sequence[Module]) -> Iterator[str]:
    """Yield the functions with many parameters; an overload counts with its implementation."""
    for module in modules:
        for node in ast.walk(module.tree):
            if not isinstance(node, Function) or parameters(node) < MANY_PARAMETERS:
                continue
            if not any(ast.unparse(found) == "overload" for found in node.decorator_list):
                yield f"{module.name}:{node.lineno} {node.name} ({parameters(node)})"


def attributes(found: ast.ClassDef) -> set[str]:
    """Return the names declared in the class body or assigned in `__init__`."""
    names = {
        node.target.id
        for node in found.body
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
    }
    for function in found.body:
        if isinstance(function, Function) and function.name == "__init__":
            names |= {
                node.attr
                for node in ast.walk(function)
                if isinstance(node, ast.Attribute)
                and isinstance(node.ctx, ast.Store)
                and isinstance(node.value, ast.Name)
                and node.value.id == "self"
            }
    return names


def wide_classes(modules: Sequence[Module]) -> Iterator[tuple[str, bool]]:
    """Yield the classes with many attributes, and whether each only carries data."""
    for module in modules:
        for node in ast.walk(module.tree):
            if not isinstance(node, ast.ClassDef):
                continue
            count = len(attributes(node))
            if count >= MANY_ATTRIBUTES:
                heads = " ".join(map(ast.unparse, [*node.bases, *node.decorator_list]))
                has_init = any(isinstance(n, Function) and n.name == "__init__" for n in node.body)
                yield (
                    f"{module.name}:{node.lineno} {node.name} ({count})",
                    not has_init or DATA.search(heads) is not None,
                )


def kind_checks(modules: Sequence[Module]) -> Iterator[str]:
    """Yield the lines outside the backends that ask for a kind."""
    for module in modules:
        if BACKENDS & set(module.name.split(".")):
            continue
        for number, line in enumerate(module.text.splitlines(), 1):
            for _ in KIND_CHECK.finditer(line):
                yield f"{module.name}:{number} {line.strip()}"


def imports(module: Module, known: frozenset[str]) -> set[str]:
    """Return the known modules that this one imports, at its top or in a function."""
    found: set[str] = set()
    waiting: list[ast.AST] = [module.tree]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            waiting += node.orelse
            continue
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                above = module.name.split(".")
                above = above[: len(above) - node.level + module.is_package]
                base = ".".join([*above, *filter(None, [node.module])])
            for alias in node.names:
                inner = f"{base}.{alias.name}"
                found.add(inner if inner in known else base)
        waiting += ast.iter_child_nodes(node)
    return (found & known) - {module.name}


def cycles(modules: Sequence[Module]) -> list[list[str]]:
    """Return the strongly connected sets of two and more modules, the largest first (Tarjan
    1972)."""
    known = frozenset(module.name for module in modules)
    graph = {module.name: imports(module, known) for module in modules}
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    sets: list[list[str]] = []

    def visit(name: str) -> None:
        index[name] = low[name] = len(index)
        stack.append(name)
        for other in graph[name]:
            if other not in index:
                visit(other)
                low[name] = min(low[name], low[other])
            elif other in stack:
                low[name] = min(low[name], index[other])
        if low[name] == index[name]:
            members: list[str] = []
            while not members or members[-1] != name:
                members.append(stack.pop())
            if len(members) > 1:
                sets.append(sorted(members))

    sys.setrecursionlimit(10_000)
    for name in graph:
        if name not in index:
            visit(name)
    return sorted(sets, key=len, reverse=True)


def show(title: str, found: Sequence[str]) -> None:
    """Print how many were found, and each."""
    print(f"{title}: {len(found)}")
    for line in found:
        print(f"    {line}")


def main() -> None:
    """Print the measures of the package in the folder that the first argument names."""
    root = Path(sys.argv[1] if len(sys.argv) > 1 else "src/fairlead")
    modules = read(root)
    if not modules:
        sys.exit(f"no Python files in {root}: name the folder of the package")
    print(f"files: {len(modules)}")
    print(f"lines: {sum(len(module.text.splitlines()) for module in modules):,}")
    print(f"tokens per code line: {tokens_per_line(modules):.2f}")
    show(f"signatures of {MANY_PARAMETERS} and more parameters", list(wide_signatures(modules)))
    classes = list(wide_classes(modules))
    title = f"classes of {MANY_ATTRIBUTES} and more attributes"
    show(title, [name for name, is_data in classes if not is_data])
    show(f"{title}, data only", [name for name, is_data in classes if is_data])
    show("kind checks outside backends", list(kind_checks(modules)))
    show("cycles", [f"{len(members)}: {', '.join(members)}" for members in cycles(modules)])


if __name__ == "__main__":
    main()

"""
Prints the graph of imports between the modules of each crate and of the Python package; fails at a circle.

In Python it also fails if a module imports a private module of another package.

A module imports another if it names it in a `use`, a path, or an `import`. Re-exports of a parent are followed to
their definition. Tests inside a module are left out. Depth is the longest chain of imports.
Against the direction are imports between two folders of which most go the other way.
"""

import ast
import re
import sys
from collections import defaultdict
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).parents[1]
CRATES = {path.name: path for path in sorted((ROOT / "crates").glob("ferromq-*"))}
Graph = dict[str, set[str]]

_COMMENT = re.compile(r"//[^\n]*")
_INLINE_TESTS = re.compile(r"#\[cfg\(test\)\]\s*mod \w+ \{")
_USE = re.compile(r"(\bpub(?:\([^)]*\))?\s+)?\buse\s+([^;]+);")
_PATH = re.compile(r"\b(?:crate|super)(?:::\w+)+")


def split_list(text: str) -> Iterator[str]:
    """Split the inside of braces at its own commas."""
    depth, begin = 0, 0
    for at, sign in enumerate(text):
        depth += (sign == "{") - (sign == "}")
        if sign == "," and depth == 0:
            yield text[begin:at]
            begin = at + 1
    yield text[begin:]


def paths(tree: str) -> Iterator[str]:
    """Return each path of a `use` tree."""
    head, brace, rest = tree.strip().partition("{")
    if not brace:
        yield head.split(" as ")[0].strip()
        return
    for part in split_list(rest.rpartition("}")[0]):
        if part.strip():
            yield from (head.strip() + path for path in paths(part))


class Crate:
    """The modules of a crate."""

    def __init__(self, src: Path) -> None:
        self.files: dict[str, str] = {}
        self.exports: dict[str, dict[str, str]] = {}
        for path in src.rglob("*.rs"):
            parts = path.relative_to(src).with_suffix("").parts
            parts = parts[:-1] if parts[-1] in {"mod", "lib"} else parts
            if parts and parts[-1].endswith("tests"):
                continue
            text = _INLINE_TESTS.split(_COMMENT.sub("", path.read_text()))[0]
            name = "::".join(parts)
            self.files[name] = text
            public = (path for is_public, tree in _USE.findall(text) if is_public for path in paths(tree))
            self.exports[name] = {path.rpartition("::")[2]: path for path in public}

    def module(self, importer: str, path: str) -> str | None:
        """Return the module that defines what *path* names in *importer*; None outside the crate."""
        parts, base = path.split("::"), importer.split("::") if importer else []
        first, climbs = parts[0], 0
        while parts and parts[0] == "super":
            parts, base, climbs = parts[1:], base[:-1], climbs + 1
        if first in {"crate", "self"}:
            base, parts = base if first == "self" else [], parts[1:]
        elif not climbs and "::".join([*base, first]) not in self.files:
            return None
        whole = [*base, *parts]
        for length in range(len(whole), -1, -1):
            found = "::".join(whole[:length])
            if found in self.files:
                onward = self.exports[found].get(whole[length]) if length < len(whole) else None
                return self.module(found, onward) or found if onward else found
        return None

    def graph(self) -> Graph:
        """Return what each module imports, its parents left out: they are where its name is."""
        graph: Graph = {}
        for name, text in self.files.items():
            used = [path for is_public, tree in _USE.findall(text) if not is_public for path in paths(tree)]
            used += _PATH.findall(_USE.sub("", text))
            found = {self.module(name, path) for path in used} - {None, "", name}
            graph[name] = {other for other in found if other and not name.startswith(other + "::")}
        return graph


def python_graph(root: Path) -> Graph:
    """Return what each module of the package imports, inside functions, too; imports for types alone are left out."""
    names = {
        ".".join(path.relative_to(root.parent).with_suffix("").parts).removesuffix(".__init__"): path
        for path in root.rglob("*.py")
    }
    graph: Graph = {}
    for name, path in names.items():
        found: set[str] = set()
        for imported in imports(ast.parse(path.read_text())):
            parts = imported.split(".")
            ends = (".".join(parts[:length]) for length in range(len(parts), 0, -1))
            found.add(next((end for end in ends if end in names), ""))
        graph[name] = {other for other in found if other not in {"", root.name, name}}
    return graph


def imports(node: ast.AST) -> Iterator[str]:
    """Return the modules, and names in modules, that code imports."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            continue
        if isinstance(child, ast.Import):
            yield from (alias.name for alias in child.names)
        elif isinstance(child, ast.ImportFrom):
            yield from (f"{child.module}.{alias.name}" for alias in child.names)
        yield from imports(child)


def circles(graph: Graph) -> list[list[str]]:
    """Return the groups of modules that import each other, directly or through others."""
    reached = {name: set(others) for name, others in graph.items()}
    for middle in graph:
        for name, others in reached.items():
            if middle in others:
                reached[name] = others | reached[middle]
    groups = {tuple(sorted(other for other in others if name in reached[other])) for name, others in reached.items()}
    return [list(group) for group in sorted(groups) if len(group) > 1]


def depth(graph: Graph) -> int:
    """Return the length of the longest chain of imports."""
    depths: dict[str, int] = {}
    for name in TopologicalSorter(graph).static_order():
        depths[name] = 1 + max((depths[other] for other in graph[name]), default=0)
    return max(depths.values())


def against(graph: Graph, separator: str) -> list[str]:
    """Return the imports between two folders that go against the direction of most of them."""
    between: defaultdict[tuple[str, str], list[str]] = defaultdict(list)
    for name, others in graph.items():
        for other in others:
            here, there = name.rpartition(separator)[0], other.rpartition(separator)[0]
            between[here, there].append(f"{name} -> {other}")
    pairs = [(between[pair], between.get((pair[1], pair[0]), [])) for pair in list(between) if pair[0] < pair[1]]
    return [line for pair in pairs for line in min(pair, key=len)]


def private(graph: Graph) -> list[str]:
    """Return the imports of a module whose name begins with `_` from outside its package."""
    return [
        f"{name} -> {other}"
        for name, others in graph.items()
        for other in others
        for package, _, module in [other.rpartition(".")]
        if module.startswith("_") and module != "_proto" and not f"{name}.".startswith(f"{package}.")
    ]


def show(title: str, graph: Graph, separator: str) -> bool:
    """Print the figures of a graph; return whether it has no circle."""
    upward = against(graph, separator)
    print(
        f"{title}: {len(graph)} modules, {sum(map(len, graph.values()))} imports, {len(upward)} against the direction"
    )
    if "-v" in sys.argv:
        print(*sorted(upward), sep="\n")
    found = circles(graph)
    for group in found:
        print(f"{title}: a circle of {len(group)}: {' '.join(group)}")
    if not found:
        print(f"{title}: no circle, depth {depth(graph)}")
    return not found


def main() -> int:
    """Print each graph; return 1 if one has a circle."""
    graphs = [(name, Crate(path / "src").graph(), "::") for name, path in CRATES.items()]
    graphs.append(("python/ferromq", python_graph(ROOT / "python" / "ferromq"), "."))
    shown = [show(*each) for each in graphs]
    reached = private(graphs[-1][1])
    for line in reached:
        print(f"a private module of another package: {line}")
    return 0 if all(shown) and not reached else 1


if __name__ == "__main__":
    sys.exit(main())

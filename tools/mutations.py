"""The small changes of a module that its tests have to notice, and how one takes effect.

A condition is negated, a comparison swapped, an operand of `and` or `or` dropped, `and` and `or`
exchanged, a statement removed, a constant off by one, a flag flipped, `None` returned instead of a
value, a function left before its first statement, an arithmetic operator swapped, `min` and `max`
or `any` and `all` exchanged, a `case` skipped. Only code inside functions changes: the values of
modules and classes are computed at import.
"""

import ast
import copy
import gc
import random
import types
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, cast

_COMPARISONS: Final[dict[type[ast.cmpop], type[ast.cmpop]]] = {
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
}
_ARITHMETIC: Final[dict[type[ast.operator], type[ast.operator]]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Add,
    ast.FloorDiv: ast.Mult,
    ast.Div: ast.Mult,
    ast.BitOr: ast.BitAnd,
    ast.BitAnd: ast.BitOr,
}
_EXCHANGED: Final = {"min": "max", "max": "min", "any": "all", "all": "any"}
_LONGEST_TEXT: Final = 140

Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, slots=True)
class Mutant:
    """A module with one change."""

    module: str
    """The path of the module from the root of the repository."""
    line: int
    end_line: int
    function: str
    operator: str
    before: str
    after: str
    tree: ast.Module = field(repr=False)
    """The whole module after the change."""

    @property
    def change(self) -> str:
        """The change without its line, which other changes of the module move."""
        return f"[{self.operator}] {self.before} -> {self.after}"

    def __str__(self) -> str:
        return f"{self.module}:{self.line} {self.change}"


def mutants_of(path: Path, root: Path) -> list[Mutant]:
    """Every mutant of a module."""
    module = str(path.relative_to(root)) if path.is_relative_to(root) else str(path)
    return [_mutant(path, number, module) for number in range(len(_found(path)[1]))]


def sample(mutants: Sequence[Mutant], count: int, seed: int) -> list[Mutant]:
    """Mutants of a module, spread over operators and functions: the same for the same seed.

    Args:
        mutants: All of them.
        count: The number of mutants. 0 means all.
        seed: Chooses between mutants of equal use.
    """
    if count <= 0 or len(mutants) <= count:
        return [*mutants]
    left, chosen, used = [*enumerate(mutants)], list[tuple[int, Mutant]](), Counter[str]()
    random.Random(f"{seed}:{mutants[0].module}").shuffle(left)  # noqa: S311 - always the same
    while len(chosen) < count:
        best = min(left, key=lambda it: used[it[1].operator] + 1.5 * used[it[1].function])
        left.remove(best)
        used[best[1].operator] += 1
        used[best[1].function] += 1
        chosen.append(best)
    return [mutant for _, mutant in sorted(chosen, key=lambda it: (it[1].line, it[0]))]


def install(mutant: Mutant, path: Path) -> int:
    """Replace the code of each function of this process that differs. Returns their number.

    Raises:
        ValueError: the mutant uses other variables of an enclosing function.
    """
    compiled = compile(mutant.tree, str(path), "exec", dont_inherit=True)
    new = {(code.co_qualname, code.co_firstlineno): code for code in _codes(compiled)}
    replaced = 0
    for candidate in gc.get_objects():
        if not isinstance(candidate, types.FunctionType):
            continue
        old = candidate.__code__
        code = new.get((old.co_qualname, old.co_firstlineno))
        if old.co_filename != str(path) or code is None or code == old:
            continue
        if len(code.co_freevars) != len(old.co_freevars):
            raise ValueError("the mutant uses other variables of the enclosing function")
        candidate.__code__ = code
        replaced += 1
    return replaced


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _codes(constant)


@dataclass(frozen=True, slots=True)
class _Change:
    function: str
    operator: str
    node: ast.expr | ast.stmt | ast.pattern
    before: str
    after: str
    apply: Callable[[], None]


def _found(path: Path) -> tuple[ast.Module, list[_Change]]:
    tree = ast.parse(path.read_bytes(), str(path))
    finder = _Finder()
    finder.visit(tree)
    return tree, finder.changes


def _mutant(path: Path, number: int, module: str) -> Mutant:
    tree, changes = _found(path)
    change = changes[number]
    change.apply()
    ast.fix_missing_locations(tree)
    line = change.node.lineno
    end = change.node.end_lineno or line
    words = (change.function, change.operator, change.before, change.after)
    return Mutant(module, line, end, *words, tree)


def _text(node: ast.AST) -> str:
    text = " ".join(ast.unparse(node).split())
    return text if len(text) <= _LONGEST_TEXT else f"{text[: _LONGEST_TEXT - 3]}..."


def _setting(node: ast.AST, name: str, value: Any, index: int | None = None) -> Callable[[], None]:
    """The change of one field of a node, or of one item of a list in it."""

    def change() -> None:
        if index is None:
            setattr(node, name, value)
        else:
            getattr(node, name)[index] = value

    return change


class _Finder(ast.NodeVisitor):
    """Collects every possible change of a module."""

    def __init__(self) -> None:
        self.changes: list[_Change] = []
        self._names: list[str] = []
        self._depth = 0

    def _add(
        self,
        operator: str,
        node: ast.expr | ast.stmt | ast.pattern,
        before: str,
        after: str,
        apply: Callable[[], None],
    ) -> None:
        if self._depth:
            name = ".".join(self._names)
            self.changes.append(_Change(name, operator, node, before, after, apply))

    # Decorators, defaults and annotations of a function belong to the import.

    def _function(self, node: Function) -> None:
        self._names.append(node.name)
        self._depth += 1
        for index, statement in enumerate(node.body):
            self._remove(node, "body", index, statement)
        self._leave(node)
        for statement in node.body:
            self.visit(statement)
        self._depth -= 1
        self._names.pop()

    visit_FunctionDef = visit_AsyncFunctionDef = _function  # noqa: N815

    def _leave(self, node: Function) -> None:
        body = node.body
        first = 1 if ast.get_docstring(node, clean=False) is not None else 0
        if len(body) > first and not isinstance(body[first], ast.Return | ast.Raise | ast.Pass):
            early = ast.copy_location(ast.Return(None), body[first])

            def leave() -> None:
                body.insert(first, early)

            self._add("return early", body[first], f"{node.name}() runs", "return", leave)

    def visit_Lambda(self, node: ast.Lambda) -> None:
        if self._depth:
            self.visit(node.body)

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self._names.append(node.name)
        depth, self._depth = self._depth, 0
        for statement in node.body:
            self.visit(statement)
        self._depth = depth
        self._names.pop()

    def generic_visit(self, node: ast.AST) -> None:
        children = ast.iter_child_nodes(node)
        if isinstance(node, ast.AnnAssign):
            children = iter([node.value] if node.value else [])
        self._conditions(node)
        self._operators(node)
        self._values(node)
        self._statements(node)
        for child in children:
            self.visit(child)

    def _conditions(self, node: ast.AST) -> None:
        if isinstance(node, ast.If | ast.While | ast.IfExp):
            self._negate(node, "test", node.test)
        elif isinstance(node, ast.match_case) and node.guard is not None:
            self._negate(node, "guard", node.guard)
        elif isinstance(node, ast.comprehension):
            for index, test in enumerate(node.ifs):
                self._negate(node, "ifs", test, index)
                true = ast.copy_location(ast.Constant(value=True), test)
                apply = _setting(node, "ifs", true, index)
                self._add("drop filter", test, f"if {_text(test)}", "no filter", apply)

    def _operators(self, node: ast.AST) -> None:
        if isinstance(node, ast.Compare) and len(node.ops) == 1:
            self._swap(node, "swap comparison", "ops", [_COMPARISONS[type(node.ops[0])]()])
        elif isinstance(node, ast.BinOp) and type(node.op) in _ARITHMETIC:
            self._swap(node, "swap arithmetic", "op", _ARITHMETIC[type(node.op)]())
        elif isinstance(node, ast.BoolOp):
            self._swap(
                node,
                "exchange and/or",
                "op",
                ast.And() if isinstance(node.op, ast.Or) else ast.Or(),
            )
            for index, operand in enumerate(node.values):
                rest = [value for other, value in enumerate(node.values) if other != index]
                after = copy.copy(node)
                after.values = rest
                # An operator has two operands: `x and x` is x.
                apply = _setting(node, "values", rest if len(rest) > 1 else rest * 2)
                self._add("drop operand", operand, _text(node), _text(after), apply)
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            twice = ast.copy_location(ast.UnaryOp(ast.Not(), node.operand), node)
            apply = _setting(node, "operand", twice)
            self._add("drop not", node, _text(node), _text(node.operand), apply)

    def _values(self, node: ast.AST) -> None:
        if isinstance(node, ast.Constant):
            self._constant(node)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            if other := _EXCHANGED.get(node.func.id):
                name = ast.copy_location(ast.Name(other, ast.Load()), node.func)
                apply = _setting(node, "func", name)
                self._add("exchange min/max", node, f"{node.func.id}(", f"{other}(", apply)
        elif isinstance(node, ast.Return) and _text(node) not in {"return", "return None"}:
            none = ast.copy_location(ast.Constant(None), node)
            apply = _setting(node, "value", none)
            self._add("return None", node, _text(node), "return None", apply)

    def _constant(self, node: ast.Constant) -> None:
        if isinstance(node.value, bool):
            apply = _setting(node, "value", not node.value)
            self._add("flip flag", node, str(node.value), str(not node.value), apply)
        elif isinstance(node.value, int | float):
            apply = _setting(node, "value", node.value + 1)
            self._add("off by one", node, str(node.value), str(node.value + 1), apply)

    def _statements(self, node: ast.AST) -> None:
        if isinstance(node, ast.Match):
            for case in node.cases:
                never = ast.copy_location(ast.Constant(value=False), node.subject)
                apply = _setting(case, "guard", never)
                self._add("skip case", case.pattern, f"case {_text(case.pattern)}", "-", apply)
        for name in ("body", "orelse", "finalbody"):
            block: object = getattr(node, name, None)
            if isinstance(block, list):
                for index, statement in enumerate(cast("list[ast.stmt]", block)):
                    self._remove(node, name, index, statement)

    def _remove(self, node: ast.AST, name: str, index: int, statement: ast.stmt) -> None:
        match statement:
            case ast.Expr(value=ast.Constant() | ast.Yield() | ast.YieldFrom()):
                return
            case ast.Assign(targets=targets) if any(
                isinstance(target, ast.Name | ast.Tuple) for target in targets
            ):
                # Without the value of a plain name, the next line ends in a NameError.
                return
            case (
                ast.Expr()
                | ast.Assign()
                | ast.AugAssign()
                | ast.Raise()
                | ast.Delete()
                | ast.Continue()
                | ast.Break()
            ):
                nothing = ast.copy_location(ast.Pass(), statement)
                apply = _setting(node, name, nothing, index)
                self._add("remove statement", statement, _text(statement), "pass", apply)
            case _:
                return

    def _negate(self, node: ast.AST, name: str, test: ast.expr, index: int | None = None) -> None:
        negated = ast.copy_location(ast.UnaryOp(ast.Not(), test), test)
        apply = _setting(node, name, negated, index)
        self._add("negate condition", test, _text(test), f"not ({_text(test)})", apply)

    def _swap(self, node: ast.expr, operator: str, name: str, value: Any) -> None:
        after = copy.copy(node)
        setattr(after, name, value)
        self._add(operator, node, _text(node), _text(after), _setting(node, name, value))

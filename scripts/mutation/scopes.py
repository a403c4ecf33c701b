"""The function, class or module to which a line belongs. Its name stays the same when lines
move.
"""

import ast

SCOPES = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


class Scopes:
    """The qualified name of the innermost scope of each line in one file. The module's name is
    empty.

    The beginning of a function (its decorators, defaults and `def`) runs in the scope around it.
    """

    def __init__(self, source: bytes) -> None:
        self._names: dict[int, str] = {}
        self.functions: set[str] = set()
        self._visit(ast.parse(source), "")

    def _visit(self, node: ast.AST, name: str) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, SCOPES):
                inner = f"{name}.{child.name}" if name else child.name
                if not isinstance(child, ast.ClassDef):
                    self.functions.add(inner)
                for line in range(child.body[0].lineno, (child.end_lineno or 0) + 1):
                    self._names[line] = inner
                self._visit(child, inner)
            else:
                self._visit(child, name)

    def at(self, line: int) -> str:
        return self._names.get(line, "")

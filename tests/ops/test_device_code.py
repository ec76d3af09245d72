"""What the source of every kernel must avoid, whatever the installed Triton makes of it."""

import ast
from pathlib import Path

import pytest

import numerics.ops

FILES = sorted(Path(numerics.ops.__file__).parent.glob("*.py"))


def device_functions() -> dict[str, ast.FunctionDef]:
    found = {}
    for path in FILES:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef) and any(ast.unparse(d) == "triton.jit" for d in node.decorator_list):
                found[f"{path.stem}.{node.name}"] = node
    return found


DEVICE = device_functions()


def test_device_functions_are_found() -> None:
    assert {"reduction._within", "stages._rotate", "qk_tile._norm_rope_tile", "row_kernel._row_kernel"} <= DEVICE.keys()


@pytest.mark.parametrize("name", DEVICE)
def test_nothing_is_negated_by_a_unary_minus_which_older_tritons_take_for_zero_minus_x(name: str) -> None:
    minus = [node for node in ast.walk(DEVICE[name]) if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub)]
    assert [ast.unparse(node) for node in minus if not isinstance(node.operand, ast.Constant)] == []


@pytest.mark.parametrize("name", DEVICE)
def test_no_inline_assembly(name: str) -> None:
    assert "inline_asm" not in ast.unparse(DEVICE[name])


@pytest.mark.parametrize("name", DEVICE)
def test_a_sum_is_over_two_elements_or_one_unless_the_order_is_open(name: str) -> None:
    """`tl.sum` promises no order; kernels use it for a + b, and freely where the reduction is `triton`."""
    sums = [
        ast.unparse(node)
        for node in ast.walk(DEVICE[name])
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "tl.sum"
    ]
    for call in sums:
        pairs = "(M, N // 2, 2)" in call or "(M, 2, N // 2)" in call
        assert pairs or _within_open_branch(DEVICE[name], call), call


def _within_open_branch(function: ast.FunctionDef, call: str) -> bool:
    branches = [
        node
        for node in ast.walk(function)
        if isinstance(node, ast.If) and ast.unparse(node.test).endswith("== 'triton'")
    ]
    return any(call in ast.unparse(statement) for branch in branches for statement in branch.body)

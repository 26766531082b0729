"""Records: frozen values with fields, and what JSON holds of them."""

from __future__ import annotations

import copy
import json
import pickle
from typing import Any

import pytest

from rig.errors import FormatError
from rig.model.record import Record, of_json


class Leaf(Record):
    """A record of plain fields."""

    name: str
    size: int = 0


class Tree(Record, always=("note",)):
    """A record of every kind of field."""

    leaves: tuple[Leaf, ...]
    pair: tuple[int, str] = (0, "")
    shape: tuple[int | str, ...] = ()
    best: Leaf | None = None
    note: str = ""


TREE = Tree((Leaf("a"), Leaf("b", 2)), (3, "c"), (1, "n", 2), Leaf("d"), "e")


def test_fields_come_in_order_or_by_name() -> None:
    assert Leaf("a", 1) == Leaf(size=1, name="a") == Leaf("a", size=1)
    assert (Leaf("a").name, Leaf("a").size) == ("a", 0)
    assert repr(Leaf("a")) == "Leaf(name='a', size=0)"


@pytest.mark.parametrize(
    ("args", "named"),
    [((), {}), (("a", 1, 2), {}), (("a",), {"name": "a"}), (("a",), {"other": 1}), ((), {"size": 1, "x": 2})],
)
def test_other_fields_are_a_type_error(args: tuple[Any, ...], named: dict[str, Any]) -> None:
    with pytest.raises(TypeError, match="Leaf takes name, size"):
        Leaf(*args, **named)


def test_it_never_changes() -> None:
    leaf = Leaf("a")
    with pytest.raises(AttributeError, match="never changes"):
        leaf.name = "b"  # type: ignore[misc]
    with pytest.raises(AttributeError, match="never changes"):
        del leaf.name
    assert leaf.replace(size=4) == Leaf("a", 4)
    assert leaf == Leaf("a")


def test_equal_ones_have_equal_hashes_and_other_kinds_differ() -> None:
    class Twin(Record):
        name: str
        size: int = 0

    assert len({Leaf("a"), Leaf("a", 0), Leaf("a", 1)}) == 2
    assert Twin("a") != Leaf("a")
    assert Leaf("a") != ("a", 0)


def test_copies() -> None:
    assert copy.copy(TREE) == copy.deepcopy(TREE) == pickle.loads(pickle.dumps(TREE)) == TREE


def test_json_leaves_defaults_out() -> None:
    assert Tree(()).to_json() == {"leaves": [], "note": ""}
    assert TREE.to_json() == {
        "leaves": [{"name": "a"}, {"name": "b", "size": 2}],
        "pair": [3, "c"],
        "shape": [1, "n", 2],
        "best": {"name": "d"},
        "note": "e",
    }


@pytest.mark.parametrize("tree", [TREE, Tree(())])
def test_round_trip(tree: Tree) -> None:
    assert of_json(Tree, json.loads(json.dumps(tree.to_json()))) == tree


@pytest.mark.parametrize(
    ("change", "where", "why"),
    [
        ({"leaves": 3}, "leaves", "it is 3, expected tuple"),
        ({"leaves": [3]}, "leaves[0]", "it is 3, expected an object"),
        ({"leaves": [{"name": "a"}, {"name": 1}]}, "leaves[1].name", "it is 1, expected a string"),
        ({"leaves": [{}]}, "leaves[0]", "the field 'name' is missing"),
        ({"leaves": [{"name": "a", "sise": 1}]}, "leaves[0]", "no field 'sise'; the fields are name, size"),
        ({"leaves": [{"name": "a", "size": True}]}, "leaves[0].size", "it is True, expected a whole number"),
        ({"leaves": [{"name": "a", "size": 1.0}]}, "leaves[0].size", "it is 1.0, expected a whole number"),
        ({"pair": [1, "a", 2]}, "pair", "expected tuple"),
        ({"pair": ["a", 1]}, "pair[0]", "it is 'a', expected a whole number"),
        ({"shape": [1, None]}, "shape[1]", r"it is None, expected int \| str"),
        ({"best": 4}, "best", "it is 4"),
        ({"best": []}, "best", "it is "),
        ({"note": None}, "note", "it is None, expected a string"),
        ({"note": 10**60}, "note", r"it is 10{36}\.\.\., expected a string"),
    ],
)
def test_other_kinds_are_refused_with_their_place(change: dict[str, Any], where: str, why: str) -> None:
    with pytest.raises(FormatError, match=why) as caught:
        of_json(Tree, {**TREE.to_json(), **change})
    assert caught.value.where == where


@pytest.mark.parametrize("value", [None, [], "x", 1])
def test_no_object(value: Any) -> None:
    with pytest.raises(FormatError, match="expected an object"):
        of_json(Leaf, value)

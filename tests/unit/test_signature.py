"""Signatures: JSON that decodes to what was encoded, and a check against the program."""

from __future__ import annotations

import json
import re

import msgspec
import pytest

from rig.errors import FormatError, Invalid
from rig.model.signature import FORMAT, Signature, Tensor, Variable, check, of_bytes, to_bytes
from rig.program.description import Input, Program

PROGRAM = Program(devices=("x86-64-v3",), inputs=(Input(0, 16), Input(0, 4)))
SIGNATURE = Signature(
    (Tensor("image", "float32", (1, 4), 0),), (Tensor("größe", "int32", (), 1, 4),), "compiler 1", "x86-64-v3", "net"
)


def test_round_trip() -> None:
    assert of_bytes(to_bytes(SIGNATURE)) == SIGNATURE


def test_it_is_plain_json() -> None:
    found = json.loads(to_bytes(SIGNATURE))
    assert found["inputs"] == [{"name": "image", "dtype": "float32", "shape": [1, 4], "slot": 0}]
    assert found["outputs"][0] == {"name": "größe", "dtype": "int32", "shape": [], "slot": 1, "align": 4}
    assert (found["compiler"], found["target"], found["name"], found["format"]) == ("compiler 1", "x86-64-v3", "net", 1)


def test_sizes() -> None:
    assert SIGNATURE.inputs[0].nbytes == 16
    assert SIGNATURE.outputs[0].nbytes == 4
    assert Tensor("empty", "float64", (3, 0), 0).nbytes == 0


@pytest.mark.case("C22")
@pytest.mark.parametrize(("version", "advice"), [(FORMAT + 1, "newer rig"), (FORMAT - 1, "compile the model again")])
def test_another_version_names_both_and_what_to_do(version: int, advice: str) -> None:
    data = json.loads(to_bytes(SIGNATURE)) | {"format": version, "a field of that version": 1}
    with pytest.raises(FormatError, match=f"format {version}, this rig reads format {FORMAT}: .*{advice}") as error:
        of_bytes(json.dumps(data).encode())
    assert error.value.where == "signature.json"


@pytest.mark.parametrize("data", [b"", b"[]", b"{", b'{"format": 1}', b'{"format": "1"}', b"\xff\xfe"])
def test_what_is_no_signature(data: bytes) -> None:
    with pytest.raises(FormatError, match=r"^signature\.json: "):
        of_bytes(data)


def test_unknown_fields_are_refused() -> None:
    data = json.loads(to_bytes(SIGNATURE)) | {"extra": 1}
    with pytest.raises(FormatError, match="extra"):
        of_bytes(json.dumps(data).encode())


def test_a_fitting_signature_passes() -> None:
    check(SIGNATURE, PROGRAM)


ONE = Tensor("b", "int32", (), 1)


@pytest.mark.parametrize(
    ("inputs", "outputs", "message"),
    [
        ((Tensor("", "float32", (4,), 0),), (ONE,), "input '' (position 0): the name is empty"),
        ((ONE, ONE), (), "input 'b' (position 1): the name is there twice"),
        ((Tensor("a", "float31", (4,), 0),), (ONE,), "'float31' is no element type; it must be one of bool, int8"),
        ((Tensor("a", "float32", (-4,), 0),), (ONE,), "input 'a' (position 0): axis 0: the extent -4 may be negative"),
        ((Tensor("a", "float32", (4,), 2),), (ONE,), "input 'a' (position 0): slot 2, but the program has 2 inputs"),
        ((Tensor("a", "float32", (4,), -1),), (ONE,), "input 'a' (position 0): slot -1, but the program has 2 inputs"),
        ((Tensor("a", "int32", (), 1),), (ONE,), "output 'b' (position 0): slot 1 is also that of input 'a'"),
        ((Tensor("a", "float32", (3,), 0),), (ONE,), "has 12 bytes, but inputs[0] of the program needs 16"),
        ((Tensor("a", "float32", (4,), 0, 3),), (ONE,), "input 'a' (position 0): align 3 is no power of two"),
        ((Tensor("a", "float32", (4,), 0),), (), "inputs[1] of the program is neither an input nor an output"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_named(inputs: tuple[Tensor, ...], outputs: tuple[Tensor, ...], message: str) -> None:
    with pytest.raises(Invalid, match=re.escape(message)):
        check(Signature(inputs, outputs), PROGRAM)


# Variables.

N = Variable("n", 0, 4)
OUT = Tensor("b", "int32", (), 1)


def test_variables_survive_and_are_left_out_where_there_are_none() -> None:
    varying = SIGNATURE.replace(variables=(N, Variable("k", -1, 1, 0)))
    assert of_bytes(to_bytes(varying)) == varying
    assert b"variables" not in to_bytes(SIGNATURE)


def test_shapes_in_numbers() -> None:
    ends = Tensor("a", "float32", ("n", 2), 0), Tensor("b", "float32", ("n*2+1",), 1)
    varying = Signature(ends[:1], ends[1:], variables=(N,))
    assert [t.shape for t in (*varying.at({"n": 3}).inputs, *varying.at({"n": 3}).outputs)] == [(3, 2), (7,)]
    assert varying.largest().outputs[0].nbytes == 36
    with pytest.raises(Invalid, match="there is no variable 'n'"):
        _ = varying.inputs[0].nbytes


@pytest.mark.parametrize(
    ("inputs", "variables", "message"),
    [
        ((Tensor("a", "float32", ("n", 4), 0),), (N,), "has 0 bytes, but inputs[0] of the program needs 16"),
        ((Tensor("a", "float32", ("n+1", 4), 0),), (N,), "input 'a' (position 0): the extent 'n+1' is no variable"),
        ((Tensor("a", "float32", ("m",), 0),), (N,), "the extent 'm' is no variable; there are ['n']"),
        ((Tensor("a", "float32", (4,), 0),), (Variable("a", 0, 1),), "variable 'a': the name is there twice"),
        ((Tensor("a", "float32", (4,), 0),), (N, N), "variable 'n': the name is there twice"),
        ((Tensor("a", "float32", (4,), 0),), (Variable("a-b", 0, 1),), "variable 'a-b': the name is no identifier"),
        ((Tensor("a", "float32", (4,), 0),), (Variable("n", 2, 1),), "variable 'n': min 2, default None and max 1"),
        ((Tensor("a", "float32", (4,), 0),), (Variable("n", 0, 4, 5),), "min 0, default 5 and max 4 are not in order"),
        ((Tensor("a", "float32", (4,), 0),), (N, Variable("m", 0, 1)), "there are 2 variables and words, but"),
    ],
)  # fmt: skip
def test_wrong_variables_are_named(inputs: tuple[Tensor, ...], variables: tuple[Variable, ...], message: str) -> None:
    with pytest.raises(Invalid, match=re.escape(message)):
        check(Signature(inputs, (OUT,), variables=variables), msgspec.structs.replace(PROGRAM, ints=1))

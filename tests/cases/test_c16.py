"""C16: however an interpreter ends that has models open, it ends soon, with the script's code, and says nothing else.

The same below models, for programs, is in `tests/unit/test_exit.py`.
"""

from __future__ import annotations

from pathlib import Path

import made
import pytest

from rig.model import Weight
from tests.unit import processes

pytestmark = pytest.mark.case("C16")
AT_ONCE = 4
often = pytest.mark.parametrize(
    "times", [16, pytest.param(100, marks=[pytest.mark.big, pytest.mark.timeout(300)])], ids=["", "100 times"]
)

OPEN = """
import os
import numpy as np
x, path = np.ones(4, "float32"), os.environ["RIG_TEST_MODEL"]
"""

SCRIPTS = {
    "a model in a global": """
model = rig.open(path)
result = model(x)
bound = model.bind({"x": x}, {"y": np.zeros(4, "float32")})
bound.run()
""",
    "weights that are mapped": """
model = rig.open(path, mmap=True)
model(x)
view = memoryview(model(x))
""",
    "a model on a memory device, with its work in flight": """
device = rig.memory_device("busy", delay=0.01)
model = rig.open(path, device=device)
kept = [model(x) for _ in range(2)]
y = np.zeros(4, "float32")
bound = model.bind({"x": x}, {"y": y})
points = bound.submit() + bound.submit()
""",
    "calls in daemon threads": """
device = rig.memory_device("busy")
def again(model):
    y = np.zeros(4, "float32")
    bound = model.bind({"x": x}, {"y": y})
    while True:
        model(x); bound.run(); model(x, out={"y": y}); rig.open(path)(x)
for d_ in (None, device) * 2:
    threading.Thread(target=again, args=(rig.open(path, device=d_),), daemon=True).start()
time.sleep(0.02)
""",
    "a cycle of models and what holds them": """
class Holder: pass
holder = Holder()
holder.model, holder.self = rig.open(path), holder
holder.bound = holder.model.bind({"x": x}, {"y": np.zeros(4, "float32")})
holder.call = lambda: holder.model(x)
holder.call()
sys.modules["kept"] = holder
""",
    "a finaliser that runs a model": """
import atexit, weakref
model = rig.open(path)
class Last:
    def __del__(self, model=model, x=x): model(x)
last = Last()
atexit.register(lambda: model(x))
weakref.finalize(last, lambda: model(x))
""",
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    path: Path = tmp_path_factory.mktemp("c16") / "model.rig"
    kind = ("float32", (4,))
    weights = ((Weight("w", 0, "float32", (4,)), bytes(16)), (Weight("big", 1, "uint8", (1 << 20,)), bytes(1 << 20)))
    step = made.step(made.launch("add_one_f32", 2, 4), made.copy(2, 0, 0), slots=(1, 0, made.memory(1, 1 << 20)))
    made.Made({"x": kind}, {"y": kind}, step, weights=weights).save(path)
    return str(path)


@pytest.mark.parametrize("script", SCRIPTS.values(), ids=SCRIPTS)
@often
def test_an_interpreter_with_models_ends_quietly(model: str, script: str, times: int) -> None:
    for _ in range(0, times, AT_ONCE):
        for process in [processes.start(OPEN + script, RIG_TEST_MODEL=model) for _ in range(AT_ONCE)]:
            assert processes.finish(process, 10) == (0, "", "")


@often
def test_an_exception_while_a_model_is_open(model: str, times: int) -> None:
    script = """
device = rig.memory_device("busy", delay=0.01)
models = [rig.open(path), rig.open(path, device=device)]
bound = models[1].bind({"x": x}, {"y": np.zeros(4, "float32")})
bound.submit()
models[0](x[:3])
"""
    for _ in range(0, times, AT_ONCE):
        for process in [processes.start(OPEN + script, RIG_TEST_MODEL=model) for _ in range(AT_ONCE)]:
            code, out, err = processes.finish(process, 10)
            assert (code, out) == (1, "")
            assert err.startswith("Traceback") and "input 'x' (position 0): expected float32 of shape (4,)" in err
            assert err.count("Traceback") == 1 and err.splitlines()[-1].startswith("rig.errors.Invalid: ")

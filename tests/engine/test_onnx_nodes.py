"""A fixed sample of the node tests of the `onnx` package, through their tool; docs/onnx-operators.md has all."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("tinygrad")
pytest.importorskip("onnx")

ROOT = Path(__file__).resolve().parents[2]
TOOL = ROOT / "tools" / "onnx_node_tests.py"

SAMPLE = [
    "abs", "adagrad", "and_bcast3v1d", "argmax_keepdims_example_select_last_index", "attention_4d_gqa",
    "averagepool_2d_ceil", "batchnorm_epsilon", "bitshift_right_uint64", "cast_DOUBLE_to_FLOAT16",
    "castlike_FLOAT_to_BFLOAT16", "clip_default_int8_min", "concat_3d_axis_negative_3",
    "constantofshape_int_shape_zero", "conv_with_strides_and_asymmetric_padding", "convinteger_with_padding",
    "cumsum_2d_axis_1", "dequantizelinear_axis", "depthtospace_crd_mode_example", "div_uint8",
    "dynamicquantizelinear", "einsum_batch_matmul", "gather_elements_negative_indices",
    "gathernd_example_int32_batch_dim1", "gemm_all_attributes", "if", "gru_seq_length",
    "layer_normalization_2d_axis1", "lstm_with_peepholes", "maxpool_2d_uint8",
    "mod_float_edge_cases_fmod_0_float32", "momentum", "nllloss_NCd1d2", "not_4d", "onehot_negative_indices",
    "prelu_broadcast", "qlinearmatmul_3D_uint8_float16", "reduce_max_empty_set", "reshape_allowzero_reordered",
    "resize_upsample_sizes_nearest_ceil_half_pixel", "scatter_elements_with_negative_indices", "slice_neg_steps",
    "softmax_large_number", "split_zero_size_splits_opset18", "top_k_smallest", "where_long_example",
    "xor_bcast4v2d",
]  # fmt: skip


@pytest.mark.timeout(300)
def test_a_sample_of_the_node_tests_passes(tmp_path: Path) -> None:
    assert len(SAMPLE) > 40
    environment = {
        **os.environ, "RIG_ONNX_NODE_TESTS": str(tmp_path), "PYTHONPATH": os.pathsep.join(filter(None, sys.path))
    }  # fmt: skip
    command = [sys.executable, str(TOOL), "--only", "|".join(SAMPLE), "--show"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["40/46", "46/46", f"passed: {len(SAMPLE)}"]


def test_the_table_is_of_the_installed_packages_and_has_no_bugs() -> None:
    """The table is written by hand's command; a new version of a package asks for a new table."""
    from importlib.metadata import version

    text = (ROOT / "docs" / "onnx-operators.md").read_text("utf-8")
    head = re.search(r"With onnx ([\d.]+), tinygrad ([\d.]+), ", text)
    assert head is not None and head[2] == version("tinygrad")
    assert "(bug)" not in text.lower().split("## operators")[1], "what is wrong is mended, or is a limit that is told"

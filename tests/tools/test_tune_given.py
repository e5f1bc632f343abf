"""Tuning of a family with optional inputs: what is measured with lengths decides calls with
lengths, and what is measured without them the others."""

from __future__ import annotations

import pytest
import torch

import runtime
from tests.tools.test_tune import Place
from tools.tune import rows

pytestmark = pytest.mark.xdist_group("tune given")  # whose family is tuned once

# One kernel is the fastest with lengths, and one without.
FILES = {
    "family.yaml": """\
family: tuned_lengths
summary: y = x, and 0 behind the length of a row.
arguments:
  x:       {tensor: [M, N], dtype: f32}
  lengths: {tensor: [L], dtype: i32, alignment: 4, optional: true}
  factors: {tensor: [N], dtype: f32, optional: true}
  y:       {output: [M, N], dtype: f32}
  ran:     {output: [1], dtype: f32, optional: true, doc: the work of the kernel that ran}
  scale:   {scalar: f32, default: 1.0}
requires:
  - {that: not lengths or L == M, because: each row has a length}
reference: reference.py:scaled
front: tuned_lengths
""",
    "cpu.yaml": """\
target: cpu
kernel: cpu.h
parameters:
  work: {type: int, token: w}
sets:
  default: [{work: 1}, {work: 64}]
""",
    "choices.yaml": """\
choices:
  - {when: lengths and L > 16, take: {work: 64}}
  - {take: {work: 1}}
""",
    "cpu.shapes.yaml": """\
shapes:
  - sizes: {M: 64, N: 2048}
    when: not lengths
    points: [{range: {M: [1, 100]}}]
  - given: [lengths]
    scalars: {scale: 2.0}
    when: lengths and scale == 2
    sizes: {M: 64, N: 2048, L: M}
    points: [{range: {M: [1, 100], L: [1, 100]}}]
""",
    "reference.py": """\
import torch

def scaled(x, lengths=None, factors=None, scale=1.0):
    y = scale * x.double()
    if lengths is not None:
        y[torch.arange(x.shape[1]) >= lengths[:, None]] = 0
    return y

def tuning_inputs(sizes, parameters, generator, given):
    if "lengths" not in given:
        return {}
    most = sizes["N"] + 1
    return {"lengths": torch.randint(most, (sizes["L"],), generator=generator, dtype=torch.int32)}
""",
    "cpu.h": """\
#pragma once
#include "launch.h"
#include "tensor_view.h"
namespace kernelmint {
template <class Config, class Isa>
LaunchResult launch(const void* pointer, const LaunchContext&) {
  const auto& args = *static_cast<const typename Config::Args*>(pointer);
  const int repeats = args.lengths.data ? 65 - Config::work : Config::work;
  for (int repeat = 0; repeat < repeats; ++repeat) {
    for (std::int64_t i = 0; i < args.M; ++i) {
      const float* x = args.x.template at<const float>(i);
      float* y = args.y.template at<float>(i);
      std::int64_t length = args.N;
      if (args.lengths.data) length = *args.lengths.template at<const int>(i);
      for (std::int64_t j = 0; j < args.N; ++j) y[j] = j < length ? args.scale * x[j] : 0;
    }
    asm volatile("" ::: "memory");
  }
  if (args.ran.data) *args.ran.template at<float>(0) = Config::work;
  return {};
}
}  // namespace kernelmint
""",
}
KEY = "tuned_lengths.cpu.w{}"


class Lengths(Place):
    """A folder of specs with this family."""

    @property
    def folder(self):
        return self.root / "kernel_specs/tuned_lengths"


@pytest.fixture(scope="module")
def tuned(tmp_path_factory):
    """The family, tuned and loaded."""
    place = Lengths(tmp_path_factory.mktemp("given"))
    place.folder.mkdir(parents=True)
    for name, text in FILES.items():
        (place.folder / name).write_text(text)
    place.tune()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KERNELMINT_CACHE_DIR", str(place.root / "cache"))
        patch.setenv("KERNELMINT_BUILD", "missing")
        runtime.load(place.folder)
        yield place


def test_a_row_says_which_calls_it_is_of_and_another_tuning_replaces_it(tuned):
    found = rows.read(tuned.rows)
    assert [(row["when"], row["range"], row["take"], row["tie"]) for row in found] == [
        ("not lengths", {"M": [1, 100]}, KEY.format(1), False),
        ("lengths and scale == 2", {"M": [1, 100], "L": [1, 100]}, KEY.format(64), False),
    ]
    said = tuned.tune()  # the journal has most of it
    assert "2 rows in" in said
    assert "beside" not in said
    assert "N 2048, L 64 for 1 to 100, scale 2.0, lengths True" in said
    assert [row["when"] for row in rows.read(tuned.rows)] == [row["when"] for row in found]


def test_a_front_takes_the_row_that_is_of_such_calls(tuned):
    x, lengths = torch.randn(20, 8), torch.full((20,), 5, dtype=torch.int32)

    def ran(*inputs, scale=1.0):
        y, work = runtime.tuned_lengths(*inputs, scale=scale, return_ran=True)
        expected = scale * inputs[0]
        if len(inputs) == 2:
            expected[:, 5:] = 0
        assert torch.equal(y, expected)
        return int(work)

    for _ in range(2):  # the second time, the extension has it
        assert ran(x) == 1
        assert ran(x[:9], lengths[:9], scale=2.0) == 64
        assert ran(x[:9], lengths[:9]) == 1  # by choices.yaml, as no row is of it
        assert ran(x, lengths) == 64


def test_explain_says_which_row_or_rule_chose(tuned):
    x, lengths = torch.randn(9, 8), torch.full((9,), 5, dtype=torch.int32)
    said = {}
    for name, inputs, scale in (
        ("row 1", (x,), 1.0),
        ("row 2", (x, lengths), 2.0),
        ("rule", (x, lengths), None),
    ):
        said[name] = runtime.explain_call(runtime.tuned_lengths, *inputs, scale=scale)
    one, two = (f"cpu.tuned.yaml, row {i + 1}: {KEY.format(w)}" for i, w in enumerate((1, 64)))
    verdicts = {n: {e.what: e.verdict for e in s.considered} for n, s in said.items()}
    assert (verdicts["row 1"][one], verdicts["row 1"][two]) == (
        "covers the call", "not so: lengths and scale == 2"
    )  # fmt: skip
    assert (verdicts["row 2"][one], verdicts["row 2"][two]) == (
        "not so: not lengths",
        "covers the call",
    )
    assert [said[name].key for name in said] == [KEY.format(w) for w in (1, 64, 1)]
    assert said["row 2"].considered[-1].verdict.startswith("taken: ")
    assert " ms, before " in said["row 2"].considered[-1].verdict
    assert said["rule"].considered[-1].verdict == "taken: the first that fits row 2 of choices.yaml"

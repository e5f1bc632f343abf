"""However a real log is damaged, ptx-report's parser ends, invents nothing and loses nothing."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fuzz import logs
from tests.fuzz.limits import limited

SAMPLES = logs.samples()


@pytest.mark.slow
@settings(max_examples=4 * settings.default.max_examples)
@given(st.randoms(use_true_random=False))
def test_damaged_logs(rng):
    text, chosen = logs.damaged(rng, SAMPLES)
    chunks = (rng.randint(1, 200) if len(text) < 100_000 else 60_000, rng.randint(200, 5000))
    with limited(60):
        logs.check(text, chosen, chunks)


def test_a_figure_of_another_kernel_is_seen(monkeypatch):
    text = b"\n".join(line for record in SAMPLES[0].records for line in record) + b"\n"
    logs.check(text, SAMPLES[:1], [7])
    rows = logs.read(text)
    rows[0] = rows[0]._replace(used_registers=rows[1].used_registers)
    monkeypatch.setattr(logs, "read", lambda *_: rows)
    with pytest.raises(logs.FuzzError, match="used_registers is that of"):
        logs.check(text, SAMPLES[:1], [7])

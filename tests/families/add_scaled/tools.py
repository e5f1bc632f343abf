"""The calls that add_scaled's kernels are checked with."""

CASES = (
    {"sizes": {"L": 5}, "options": {"factors": (0.5, -2)}},
    {"sizes": {"L": 20}},
)

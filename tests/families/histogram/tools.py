"""The calls that histogram's kernels are checked with."""

CASES = (
    {"sizes": {"N": 7}, "values": {"x": (0, 3, 3, -1, 2, 9, 3)}, "options": {"bins": 4}},
    {"sizes": {"N": 1}, "values": {"x": (5,)}, "options": {"bins": 6}},
)

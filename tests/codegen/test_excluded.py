"""`kernelmint list --excluded`: what each rule leaves out of a set's products."""

import itertools
import json

import pytest
from click.testing import CliRunner

from codegen.__main__ import main
from codegen.core.home import SPECS
from codegen.space.expand import exclusions, parts
from codegen.spec.load import load


def run(*arguments):
    result = CliRunner().invoke(main, ["list", "--specs", str(SPECS), "--excluded", *arguments])
    assert result.exit_code == 0, result.output
    return result.output


@pytest.mark.parametrize("name", ["flash_backward.sm90a", "flash_decode.sm80"])
def test_each_rule_is_counted_and_alone_as_trying_every_combination_does(name):
    """`explain` finds the rules of a configuration one by one."""
    family, target_name = name.split(".")
    where = f"family == '{family}' and target == '{target_name}'"
    (of,) = json.loads(run("--set", "tune", "--where", where, "--json"))
    targets = [target for found in load([SPECS], only=family) for target in found.targets]
    target = next(target for target in targets if target.name == target_name)
    chosen = next(s for s in target.sets if s.name == "tune")
    tried = [
        [*exclusions(target, values), *_pruned(target, part, values)]
        for part in parts(target, chosen)
        if not part.strict  # a configuration that is written out
        for values in itertools.product(*part.values)
    ]
    assert (of["combinations"], of["left"]) == (len(tried), tried.count([]))
    for rule in of["rules"]:
        text = f"{rule['place']}: {rule['that']}: "
        leaving_out = [reasons for reasons in tried if any(r.startswith(text) for r in reasons)]
        counts = len(leaving_out), sum(len(reasons) == 1 for reasons in leaving_out)
        assert (rule["left_out"], rule["alone"]) == counts, text
    assert any(rule["alone"] for rule in of["rules"])


def _pruned(target, part, values):
    scope = dict(target.by_name(values))
    for derived in target.derived:
        scope[derived.name] = derived.expression.evaluate(scope)
    rules = [rule for rule in part.prune if not rule.that.evaluate(scope)]
    return [f"{rule.location}: {rule.that.text}: {rule.because}" for rule in rules]


def test_the_table_begins_with_the_rule_that_leaves_out_most():
    lines = run("--set", "tune", "--where", "target == 'sm90a'").splitlines()
    assert lines[0].startswith("flash_backward.sm90a, tune: ")
    assert lines[1].split() == ["left", "out", "alone", "rule"]
    first, second = (int(line.split()[0].replace(",", "")) for line in lines[2:4])
    assert first >= second > 0
    assert any(line.endswith(" other rules") for line in lines)
    assert any("its configurations are written out" in line for line in lines)

"""Tables show themselves as text, and in a notebook as HTML with every text escaped."""

import torch
from torch.nn import Linear, Sequential

import lpkernels as lp
from lpkernels._table import TextTable
from lpkernels.techniques.accumulation import plan
from lpkernels.techniques.assignment import demote, group, trace
from lpkernels.techniques.loss_scaling import diagnose


def test_a_table_is_aligned_text_and_escaped_html() -> None:
    made = TextTable([("name", "n"), ("<b>&", "12")], (0,), ["1: a < b"], rule=True)
    assert str(made) == "name   n\n----  --\n<b>&  12\n1: a < b"
    html = made.html()
    assert "<b>" not in html and "&lt;b&gt;&amp;" in html and "<p>1: a &lt; b</p>" in html
    assert html.count("<tr>") == 2 and html.count("<th ") == html.count("<td ") == 2
    assert str(TextTable([], notes=["nothing"])) == "nothing"
    assert TextTable([], notes=["nothing"]).html() == "<table></table><p>nothing</p>"


def test_tables_policies_and_plans_have_html() -> None:
    model, x = Sequential(Linear(4, 3)), torch.randn(5, 4)
    labels = torch.arange(5) % 3
    with diagnose(model, "fp16") as report:
        model(x).sum().backward()
    assignment = demote(group(trace(model, torch.nn.functional.cross_entropy, (x, labels))), 0.5)
    shown = [
        lp.policy("fp16_mixed"),
        lp.nn.summary(model, x),
        plan(model, x, loss=lambda y: y.square().sum(), operand="e5m2"),
        report,
        assignment,
    ]
    for each in shown:
        html, text = each._repr_html_(), str(each)
        assert html.startswith("<table><tr><th") and html.count("<tr>") > 1
        assert text.splitlines()[0].split()[0] in html

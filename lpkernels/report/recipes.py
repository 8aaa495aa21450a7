"""Tables of recipes: all named ones, and one in detail."""

from rich.table import Table

from lpkernels.nn.policies import describe as describe_policy
from lpkernels.nn.policies import policies, policy
from lpkernels.recipes import describe, recipe, recipes


def recipe_table() -> Table:
    """Every named recipe with the first sentence of its description."""
    table = Table(title="Recipes (lpkernels recipes NAME: one in detail)")
    table.add_column("name", no_wrap=True)
    table.add_column("policy")
    table.add_column("what")
    for name in recipes():
        table.add_row(name, "yes" if name in policies() else "", describe(name).splitlines()[0])
    return table


def recipe_details(name: str) -> Table:
    """One recipe in detail, and the policy of its name, where there is one, as it is printed."""
    table = Table(title=name, show_header=False)
    table.add_column("what", no_wrap=True)
    # A recipe is one long word.
    table.add_column("known", overflow="fold")
    table.add_row("recipe", str(recipe(name)))
    has_policy = name in policies()
    paragraphs = (describe_policy if has_policy else describe)(name).split("\n\n")
    table.add_row("description", "\n\n".join(" ".join(each.split()) for each in paragraphs))
    if has_policy:
        apart = [line.split()[0] for line in str(policy(name)).splitlines()[2:]]
        table.add_row("policy", "keys " + ", ".join(apart))
    return table

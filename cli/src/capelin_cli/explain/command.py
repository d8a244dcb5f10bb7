"""The command `capelin explain`: reads, explains, prints."""

from rich.console import Group, RenderableType
from rich.text import Text

from capelin_cli.environments.connection import ClusterName, find_environment
from capelin_cli.environments.kubeconfigs import missing_cluster
from capelin_cli.explain.model import Chain, Explanation
from capelin_cli.explain.reading import read_facts
from capelin_cli.explain.walk import explain
from capelin_cli.terminal.tables import Format, listing_console, plain, print_data
from capelin_cli.terminal.text import as_invoked, printable

_SHOWN = 10


async def explain_cluster(which: ClusterName, output: Format) -> bool:
    """Print why a Cluster waits. Returns whether it is ready."""
    environment = None if which.kubeconfig else find_environment(which.environment)
    async with which.client() as client:
        facts = await read_facts(client, which.name, which.namespace, environment)
        if facts is None:
            raise await missing_cluster(client, which.name, which.namespace)
    explanation = explain(facts)
    if output in {"json", "yaml"}:
        print_data(explanation.model_dump(mode="json", exclude_none=True), output)
    else:
        listing_console().print(rendered(explanation, whole=output == "wide"))
    return explanation.state == "Ready"


def rendered(explanation: Explanation, *, whole: bool = False) -> RenderableType:
    """The text for people. `whole` shows all causes and the evidence of each link."""
    name = printable(str(explanation.cluster))
    if explanation.state == "Ready":
        return Text(f"{name} is ready.", "green")
    # Nothing of a sleeping cluster waits: its conditions only show that it sleeps.
    says_more = explanation.message and explanation.state != "Asleep"
    message = f": {printable(explanation.message)}" if says_more else ""
    title = Text.assemble((name, "bold"), f" is {explanation.state.lower()}{message}")
    lines: list[RenderableType] = [title]
    shown = explanation.chains if whole else explanation.chains[:_SHOWN]
    for number, chain in enumerate(shown, 1):
        lines += [Text(""), *_chain_lines(number, chain, whole=whole)]
    if left := len(explanation.chains) - len(shown):
        lines.append(Text(f"\n{left} more causes: -o wide shows them.", "dim"))
    return Group(*lines)


def _chain_lines(number: int, chain: Chain, *, whole: bool) -> list[RenderableType]:
    lines: list[RenderableType] = []
    for depth, link in enumerate(chain.links):
        is_last = depth == len(chain.links) - 1
        start = f"{number}. " if depth == 0 else "   " + "  " * (depth - 1) + "└ "
        since = f"  since {link.since:%Y-%m-%d %H:%M} UTC" if link.since else ""
        repeats = depth > 0 and link.text == chain.links[depth - 1].text
        text = "" if repeats else f": {link.text}"
        lines.append(
            Text.assemble(
                start,
                (printable(str(link.object)), "bold" if is_last else ""),
                printable(text),
                (since, "dim"),
            )
        )
        if whole and link.evidence:
            lines.append(plain(f"   {'  ' * depth}  {link.evidence}", "dim"))
    cause = f"   {chain.cause}, responsible: {chain.responsible}"
    lines.append(plain(cause, "yellow"))
    if chain.command:
        lines.append(plain(as_invoked(f"   → {chain.command}"), "cyan"))
    return lines

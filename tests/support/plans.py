"""What stands in Spark's plans."""

import re
from itertools import pairwise

_NODE = re.compile(r"([A-Z]\w+)(?: [\w ]+)? \((\d+)\)\s*$")


def aggregated_before_exchange(plan: str) -> list[tuple[str, str]]:
    """The aggregations under each exchange of an EXPLAIN FORMATTED: (kind of node, its functions).

    There they are done by the executors that read the rows, before anything is sent from one to another.
    """
    tree, _, details = plan.partition("\n\n")
    nodes = [match for line in tree.splitlines() if (match := _NODE.search(line))]
    found = []
    for above, below in pairwise(nodes):
        if above[1] == "Exchange" and below[1].endswith("Aggregate"):
            functions = re.search(rf"\n\({below[2]}\) \w+\n(?:.*\n)*?Functions(?: \[\d+\])?: (.*)", details)
            found.append((below[1], functions[1] if functions else ""))
    return found

"""A group of commands that lists each with its whole first sentence."""

from __future__ import annotations

import click


class Listing(click.Group):
    """Click itself would cut what does not fit beside the name."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of commands."""
        with formatter.section("Commands"):
            formatter.write_dl(self.sentences(ctx))

    def sentences(self, ctx: click.Context) -> list[tuple[str, str]]:
        """(name, what it does) of each command."""
        found = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        return [(name, first_sentence(one)) for name, one in found if one is not None]


def first_sentence(command: click.Command) -> str:
    """What a command does, up to the first full stop."""
    text = " ".join((command.short_help or command.help or "").partition("\n\n")[0].split())
    return text.partition(". ")[0].rstrip(".") + "."

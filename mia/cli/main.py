"""`mia`: the command itself, and the one place where errors become messages and exit codes."""

from __future__ import annotations

import sys

import typer
from rich.console import Console
from rich.markup import escape

import mia
from mia.cli import ask, compare, config, evaluate, memory, serve
from mia.errors import MiaError

HELP = """Memory Intelligence Agent: answers questions by planning, searching and remembering.

Exit codes: 0 answered; 1 no answer was found; 2 the input cannot be used; 3 the configuration is wrong;
4 storage failed; 5 a service that MIA needs is down.
"""

app = typer.Typer(help=HELP, no_args_is_help=True, pretty_exceptions_enable=False, rich_markup_mode=None)
app.command("ask")(ask.ask)
app.command("eval")(evaluate.evaluate)
app.command("compare")(compare.compare)
app.command("config")(config.config)
app.add_typer(memory.app, name="memory")
app.add_typer(serve.app, name="serve")


@app.callback(invoke_without_command=True)
def root(version: bool = typer.Option(False, "--version", help="Print the version and stop.")) -> None:  # noqa: FBT001, FBT003
    """Handle the options of `mia` itself."""
    if version:
        Console().print(mia.__version__, highlight=False)
        raise typer.Exit


def main() -> None:
    """Run the command line; every error that MIA raises on purpose ends here, in two lines."""
    try:
        app()
    except MiaError as error:
        stderr = Console(stderr=True)
        stderr.print(f"[bold red]error[/]: {escape(error.message)}", soft_wrap=True, highlight=False)
        if error.remedy:
            stderr.print(f"[bold]remedy[/]: {escape(error.remedy)}", soft_wrap=True, highlight=False)
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main()

"""The options of `meshwright serve`."""

from meshwright.cli._checkpoint_commands import add_which
from meshwright.cli._parser import Commands


def add_serve(commands: Commands) -> None:
    """Add the command."""
    serve = commands.add(
        "serve", "_serve", "Serve the model of a run to a browser, curl and OpenAI's clients, to try it."
    )
    serve.add_argument("path", metavar="RUN", help="the directory or URL of the run, also while it trains")
    serve.add_argument(
        "--host",
        default="127.0.0.1",
        metavar="ADDRESS",
        help="the address to listen at (default: 127.0.0.1, which other machines do not reach)",
    )
    serve.add_argument(
        "--port", type=int, default=8000, metavar="N", help="the port; 0 for any (default: 8000)"
    )
    serve.add_argument("--name", metavar="NAME", help="the model's name for clients (default: that of RUN)")
    serve.add_argument(
        "--slots", type=int, default=8, metavar="N", help="generate N texts at the same time (default: 8)"
    )
    serve.add_argument(
        "--length",
        type=int,
        default=1024,
        metavar="N",
        help="tokens of a prompt and its answer (default: 1024)",
    )
    serve.add_argument(
        "--max-waiting",
        type=int,
        default=256,
        metavar="N",
        help="refuse requests when N texts wait (default: 256)",
    )
    serve.add_argument(
        "--by",
        metavar="module:function",
        help="the function that the run was started from; needed only if other users can write to RUN",
    )
    add_which(serve, "serve")

"""`clom serve`: a web page and an HTTP API for a model."""

from __future__ import annotations

import logging
import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter
from cyclopts.validators import Number

from clom.cli.console import Console
from clom.cli.learn import say
from clom.cli.options import Device
from clom.errors import UserError
from clom.extras import require

if TYPE_CHECKING:
    from clom.serve.security import Access


def serve_command(
    model: Path,
    *,
    host: str = "127.0.0.1",
    port: Annotated[int, Parameter(validator=Number(gte=0, lt=65536))] = 8000,
    read_only: bool = False,
    token: Annotated[str | None, Parameter(env_var="CLOM_TOKEN")] = None,
    public: Annotated[bool, Parameter(negative=())] = False,
    method: str | None = None,
    backbone: str | None = None,
    threads: Annotated[int | None, Parameter(validator=Number(gte=1))] = None,
    batch: Annotated[int, Parameter(validator=Number(gte=1))] = 32,
    niceness: Annotated[int, Parameter(validator=Number(gte=0, lte=19))] = 10,
    device: Device = "auto",
) -> None:
    """Serve a model: a web page for predicting and teaching, and an HTTP API. Press Ctrl-C to stop.

    It is reachable only from this machine unless you choose another --host.

    Parameters
    ----------
    model
        The model file; an empty model is created if it does not exist.
    host
        The address to listen on; 0.0.0.0 is every address of this machine.
    port
        The port to listen on; 0 selects a free one.
    read_only
        Predict only; disable teaching.
    token
        Secret required for teaching and, unless --host is local, for everything else. Set it with the environment
        variable CLOM_TOKEN to hide it from other users of this machine.
    public
        Let everybody who can reach a --host that is not local ask for predictions without the token.
    method
        For a new model: experts (the default), slda, ncm, ranpac, klda or clom.
    backbone
        For a new model: efficientnet-lite0 (pretrained, the default) or another that `clom learn` takes.
    threads
        Number of CPU threads; by default one per core.
    batch
        Maximum number of images from concurrent requests per forward pass; 1 disables batching.
    niceness
        Niceness of the training process, from 0 to 19 (lowest priority).
    """
    require("serve", "clom serve")
    from clom import machine
    from clom.serve.app import make_app
    from clom.serve.security import Access, check_token
    from clom.serve.server import make_server
    from clom.serve.service import Service

    if token is not None:
        check_token(token)
    access = Access(host, token, read_only, public)
    _check_open(access)
    machine.tune_process(threads)
    logging.getLogger("python_multipart").setLevel(logging.ERROR)  # it would log untrusted input
    console = Console()
    listener = _listen(host, port)
    with listener:
        _make_if_missing(console, model, method, backbone, read_only)
        chosen = machine.choose_device(device)
        service = Service(model, access, threads=threads, most=batch, niceness=niceness, device=chosen)
        _show_address(console, access, listener.getsockname()[1])
        make_server(make_app(service)).run(sockets=[listener])
    say(console, "Stopped.")


def _listen(host: str, port: int) -> socket.socket:
    """Bind before the model is loaded, so that a port in use is reported at once."""
    try:
        # Without an explicit protocol asyncio leaves Nagle's algorithm on, and every response waits 40 ms for the
        # acknowledgement of its header.
        found = socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM, proto=socket.IPPROTO_TCP)
        family, kind, protocol, _, place = found[0]
        listener = socket.socket(family, kind, protocol)
        if sys.platform != "win32":  # where it would let two servers share a port
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(place)
        listener.listen(512)
        return listener
    except OSError as problem:
        advice = "Choose another with --port." if "in use" in str(problem) else "Is that an address of this machine?"
        raise UserError(f"Cannot listen on {host}, port {port}: {problem.strerror or problem}. {advice}") from None


def _check_open(access: Access) -> None:
    if not access.local and access.token is None and not access.public:
        raise UserError(
            f"On {access.host} others can reach the server. Set a token with --token or the environment variable "
            "CLOM_TOKEN, or use --public to let everybody ask."
        )


def _make_if_missing(console: Console, model: Path, method: str | None, backbone: str | None, read_only: bool) -> None:
    from clom.photos.teach import make_learner
    from clom.storage.model_file import save_model

    if not model.exists():
        if read_only:
            raise UserError(f"There is no model {model}, and a read-only server does not create one.")
        save_model(model, make_learner(method, backbone, None))
        say(console, f"{model} was created and has learned nothing yet.")


def _show_address(console: Console, access: Access, port: int) -> None:
    name = access.host.strip("[]")
    shown = f"[{name}]" if ":" in name else name
    say(console, f"Open http://{shown}:{port} in a browser. Press Ctrl-C to stop.")
    if access.read_only:
        say(console, "Teaching is disabled: read-only.")
    elif not access.teaching:
        say(console, "Teaching is disabled: on a non-local address it needs --token.")
    elif access.token is not None:
        say(console, "Teaching requires the token.")
    if not access.local:
        asking = "Everybody may ask." if access.public else "Everything but the empty page requires the token."
        say(console, asking)
        say(console, "It is reachable from the network, and the connection is not encrypted.")

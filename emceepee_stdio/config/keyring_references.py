"""Which texts of a server stand for secrets in the keyring, and the server once those are known.

Only where nobody else sees them: other users see the arguments of every program, so a secret goes
into its environment, a header, the URL, or the secret of a sign-in.
"""

from collections.abc import Iterator, Mapping

import msgspec

from emceepee_stdio.config.expand import fill_in, is_template, keyring_names
from emceepee_stdio.config.fields import Given, is_object
from emceepee_stdio.config.server import ServerConfig, TemplatePlace

__all__ = ["IN_KEYRING", "filled_in", "needed_secrets", "template_places"]

IN_KEYRING = frozenset({"env", "headers", "url", "client_secret"})


def template_places(given: Mapping[str, Given]) -> frozenset[TemplatePlace]:
    """From the fields of an entry, before they are expanded."""
    return frozenset(
        place
        for field, (_, value) in given.items()
        if field in IN_KEYRING or field == "oauth"
        for place in _places(field, value)
    )


def _places(field: str, value: object) -> Iterator[TemplatePlace]:
    if is_template(value):
        yield (field,)
    elif is_object(value):
        for key, item in value.items():
            if is_template(item):
                yield (field, "client_secret" if field == "oauth" else key)


def needed_secrets(server: ServerConfig) -> list[str]:
    """The names in the keyring that the server refers to, each once."""
    texts = (_text(server, place) for place in sorted(server.templates))
    return list(dict.fromkeys(name for text in texts for name in keyring_names(text)))


def filled_in(server: ServerConfig, secrets: Mapping[str, str]) -> ServerConfig:
    """The server as it is connected to. A secret that cannot be passed on raises ConfigInvalid."""

    def text(place: TemplatePlace, held: str) -> str:
        return fill_in(held, secrets) if place in server.templates else held

    oauth = msgspec.structs.replace(
        server.oauth,
        client_secret=server.oauth.client_secret
        and text(("oauth", "client_secret"), server.oauth.client_secret),
    )
    return msgspec.structs.replace(
        server,
        env={key: text(("env", key), held) for key, held in server.env.items()},
        headers={key: text(("headers", key), held) for key, held in server.headers.items()},
        url=server.url and text(("url",), server.url),
        oauth=oauth,
        templates=frozenset(),
    )


def _text(server: ServerConfig, place: TemplatePlace) -> str:
    match place:
        case ("env", key):
            return server.env[key]
        case ("headers", key):
            return server.headers[key]
        case ("url",):
            return server.url or ""
        case _:
            return server.oauth.client_secret or ""

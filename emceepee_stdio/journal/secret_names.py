"""Which names mean a secret: `GITHUB_TOKEN`, `x-api-key`, `clientSecret`; and which only sound so.

A name is read as words, so that its spelling does not matter and `secretary` is not a secret. When
a name is in doubt it counts as secret: a hidden page number costs less than a shown password.
"""

import re
from functools import lru_cache
from itertools import pairwise

__all__ = [
    "counts_things",
    "holds_a_header",
    "holds_a_password",
    "is_secret_name",
    "is_setting_name",
]

# The end of a name says the most; a name longer than this is data.
_MAX_NAME_CHARS = 200

_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")


def _words(name: str) -> list[str]:
    return [word.lower() for word in _WORD.findall(name)]


_SECRET_WORDS = frozenset(
    _words(
        "auths bearer cookie cookies credential credentials creds jwt jwts otp passcode passkey "
        "passphrase passphrases passwd password passwords psk pw pwd pws secret secrets sig "
        "signature signatures token tokens totp"
    )
)
# These say it only at the end of a name: `DB_PASS` and `npm_auth`, not `pass_env` and `auth_type`.
_SECRET_LAST_WORDS = frozenset({"auth", "pass", "pat", "sid"})
_SECRET_ENDINGS = (
    "accesskey",
    "apikey",
    "authorization",
    "cookie",
    "credential",
    "credentials",
    "passphrase",
    "passwd",
    "password",
    "privatekey",
    "pwd",
    "secret",
    "secretkey",
    "sessid",
    "sessionid",
    "token",
    "tokens",
)
_KEY_OWNERS = frozenset(
    _words(
        "access account api app auth encryption license master private secret service shared "
        "signing ssh subscription"
    )
)
_HARMLESS_KEYS = frozenset(_words("cache foreign idempotency partition primary public sort unique"))

# What follows the secret word when the name speaks about the secret and does not hold it.
_ABOUT_LAST_WORDS = frozenset(
    _words(
        "at budget count counts dir enabled endpoint env expired expires expiry field file files "
        "header in kind length limit limits methods name names param path per policy remaining "
        "required second server servers size supported ttl type types uri uris url urls usage used "
        "var variable"
    )
)
# What precedes `token` when it is a piece of text or a place in a list.
_TOKEN_KINDS = _words(
    "audio cached completion context continuation eos input max min num output page progress "
    "prompt reasoning stop thinking total"
)
_TEXT_TOKENS = frozenset(
    {kind + ending for kind in _TOKEN_KINDS for ending in ("token", "tokens")}
    | {"tokencount", "tokenlimit", "tokentype", "tokenusage"}
)
# What nobody calls a secret by: `AWS_REGION`, `model`.
_SETTING_LAST_WORDS = frozenset(
    _words(
        "arch channel charset date domain edition encoding engine env environment format host "
        "hostname lang language level locale location mode model platform port provider region "
        "stage theme timezone transport tz version zone"
    )
)


def is_setting_name(name: str) -> bool:
    """Whether the name says that what stands under it is no secret."""
    words = _words(name)
    return bool(words) and words[-1] in _SETTING_LAST_WORDS and not is_secret_name(name)


def is_secret_name(name: str) -> bool:
    """Whether what stands under this name is to be hidden."""
    return _is_secret(name[-_MAX_NAME_CHARS:])


def counts_things(name: str) -> bool:
    """Whether a number under this name is a count: `tokens: 512`, `pass: 12`."""
    words = _words(name)
    return bool(words) and words[-1].endswith("s")


def holds_a_header(name: str) -> bool:
    """Whether the value runs to the end of the line, as headers with spaces in them do."""
    return any(word.endswith(("authorization", "cookie")) for word in _words(name))


def holds_a_password(name: str) -> bool:
    """Whether a person may have chosen the value, spaces and all."""
    return any(
        word.startswith("pass") or word == "pw" or word.endswith(("password", "pwd"))
        for word in _words(name)
    )


@lru_cache(maxsize=4096)
def _is_secret(name: str) -> bool:
    words = _words(name)
    if not words or words[-1] in _ABOUT_LAST_WORDS or "".join(words) in _TEXT_TOKENS:
        return False
    pairs = list(pairwise(words))
    if words[-1] in {"token", "tokens"} and len(words) > 1 and words[-2] in _TOKEN_KINDS:
        return False
    return (
        words[-1] in _SECRET_LAST_WORDS
        or any(word in _SECRET_WORDS or word.endswith(_SECRET_ENDINGS) for word in words)
        or ("session", "id") in pairs
        or any(owner in _KEY_OWNERS and key in {"key", "keys"} for owner, key in pairs)
        or _is_key_of_a_service(name, words)
    )


def _is_key_of_a_service(name: str, words: list[str]) -> bool:
    """`OPENAI_KEY`: in the environment a key is a credential unless it is known not to be."""
    return (
        name.isupper()
        and len(words) > 1
        and words[-1] in {"key", "keys"}
        and words[-2] not in _HARMLESS_KEYS
    )

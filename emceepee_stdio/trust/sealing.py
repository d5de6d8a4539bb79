"""Text that lies in a file and is to be read only with our key: sealed, and opened again.

The key lies beside it, for its owner alone. So this keeps values out of sight where the file is
shown, copied or attached to a report; it keeps them from nobody who reads the whole directory.
"""

import hashlib
import hmac
import secrets
from base64 import b64decode, b64encode

__all__ = ["seal", "unseal"]

_NONCE_BYTES = 16
_TAG_BYTES = 32


def seal(key: bytes, text: str) -> str:
    nonce = secrets.token_bytes(_NONCE_BYTES)
    hidden = nonce + _mixed(key, nonce, text.encode("utf-8", "surrogatepass"))
    return b64encode(hidden + _tag(key, hidden)).decode()


def unseal(key: bytes, sealed: str) -> str | None:
    """The text; None when it was sealed with another key, or changed."""
    try:
        data = b64decode(sealed, validate=True)
        hidden, tag = data[:-_TAG_BYTES], data[-_TAG_BYTES:]
        if not hmac.compare_digest(tag, _tag(key, hidden)):
            return None
        nonce, rest = hidden[:_NONCE_BYTES], hidden[_NONCE_BYTES:]
        return _mixed(key, nonce, rest).decode("utf-8", "surrogatepass")
    except ValueError:
        return None


def _mixed(key: bytes, nonce: bytes, data: bytes) -> bytes:
    """With a stream that nobody can make without the key; the nonce is never used again."""
    stream = hashlib.shake_256(b"emceepee-seal" + key + nonce).digest(len(data))
    return bytes(a ^ b for a, b in zip(data, stream, strict=True))


def _tag(key: bytes, data: bytes) -> bytes:
    return hmac.new(key, b"emceepee-tag" + data, hashlib.sha256).digest()

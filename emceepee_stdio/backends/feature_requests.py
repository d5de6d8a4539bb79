"""The requests of the protocol by their names, in the same words for both eras."""

from abc import abstractmethod

from msgspec import Raw

from emceepee_stdio.backends.base import CarriesMeta, Params, RemoteError, Sender, with_meta
from emceepee_stdio.backends.notifications import decoded
from emceepee_stdio.errors import NotSupported, ProxyError, ResourceNotFound
from emceepee_stdio.json_values import mapping
from emceepee_stdio.wire.codec import INVALID_PARAMS, METHOD_NOT_FOUND, RESOURCE_NOT_FOUND

__all__ = ["FeatureRequests"]


class FeatureRequests(Sender):
    """What can be asked of a server, by whoever can ask it anything."""

    name: str

    @abstractmethod
    async def ask(
        self, method: str, params: Params, *, within: float, call: object = None
    ) -> Raw: ...

    async def call_tool(
        self, tool: str, arguments: Raw | Params, *, within: float, call: object = None
    ) -> Raw:
        params = {"name": tool, "arguments": arguments}
        return await self.ask("tools/call", params, within=within, call=call)

    async def read_resource(
        self, uri: str, *, within: float, call: CarriesMeta | None = None
    ) -> Raw:
        params = with_meta({"uri": uri}, call)
        try:
            return await self.ask("resources/read", params, within=within, call=call)
        except RemoteError as error:
            if _is_missing_resource(error):
                raise ResourceNotFound(f"{self.name} has no resource {uri!r}.") from None
            raise self.unsupported(error, "resources") from None

    async def get_prompt(
        self, prompt: str, arguments: Params, *, within: float, call: CarriesMeta | None = None
    ) -> Raw:
        params = with_meta({"name": prompt, "arguments": arguments}, call)
        try:
            return await self.ask("prompts/get", params, within=within, call=call)
        except RemoteError as error:
            raise self.unsupported(error, "prompts") from None

    async def complete(
        self,
        ref: Params,
        argument: Params,
        context: Params | None,
        *,
        within: float,
        call: CarriesMeta | None = None,
    ) -> Raw:
        params: dict[str, object] = {"ref": ref, "argument": argument}
        if context:
            params["context"] = {"arguments": context}
        try:
            return await self.ask("completion/complete", with_meta(params, call), within=within)
        except RemoteError as error:
            raise self.unsupported(error, "completion") from None

    def unsupported(self, error: RemoteError, what: str) -> ProxyError:
        """What a refused request means where the server does not know its method."""
        if error.error.code == METHOD_NOT_FOUND:
            return NotSupported(f"{self.name} does not support {what}.")
        return error


def _is_missing_resource(error: RemoteError) -> bool:
    if error.error.code == RESOURCE_NOT_FOUND:
        return True
    return error.error.code == INVALID_PARAMS and "uri" in mapping(decoded(error.error.data))

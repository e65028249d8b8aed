"""A KV connector for vLLM: full blocks go to a Portolan host over a local socket, and come from it.

vLLM imports ``PortolanConnector`` from here by ``kv_connector_module_path``; the client of the socket works without vLLM.
"""

from .client import Client, Refused, Unreachable

__all__ = ["Client", "PortolanConnector", "Refused", "Unreachable"]


def __getattr__(name):
    # Only where vLLM asks for it: the client and its tests do without vLLM.
    if name == "PortolanConnector":
        from .connector import PortolanConnector

        return PortolanConnector
    raise AttributeError(name)

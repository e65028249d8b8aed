"""vLLM's KV connector interface, version 1, over a Portolan host's socket.

The scheduler's side asks how many blocks of a prompt the host has, the worker's side loads them before the step that needs
them and hands over what a step filled. Whatever goes wrong is computed: a host that is not there holds nothing, and a block
that does not come whole is reported as not loaded (``kv_load_failure_policy: recompute``). Requests without ``cache_salt``,
with adapters, images or embeddings are left alone: what their KV depends on is not in their tokens and salt.
"""

import logging
import queue
import threading
import time
from dataclasses import dataclass, field

from vllm import __version__ as vllm_version
from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorMetadata,
    KVConnectorRole,
    SupportsHMA,
)

from .arrangement import Arrangement
from .client import PIECE, Client, Refused, Unreachable
from .shape import Shape

logger = logging.getLogger("vllm.portolan")

# Seconds the scheduler waits for the host to say what it has: no request is worth holding up all others for longer.
FIND_WITHIN = 0.25
# Seconds the worker waits for blocks.
LOAD_WITHIN = 10.0
# Seconds until a host that was not there is told again that nothing will come.
IDLE_AGAIN = 5.0
# Saves that wait for the host. Beyond, what is filled is not handed over.
SAVES_WAITING = 64


@dataclass
class Move:
    """Blocks of one request: ``ids`` are the engine's, of the prompt's blocks up to the last that is meant. ``turn`` is
    another for every move: of several workers' parts of a block only those of one move are one block."""

    salt: str
    tokens: list
    first: int
    ids: list
    turn: int


@dataclass
class Step(KVConnectorMetadata):
    """What the worker does in one step."""

    loads: list = field(default_factory=list)
    saves: list = field(default_factory=list)


class PortolanConnector(KVConnectorBase_V1, SupportsHMA):
    """See the module. Models of several cache groups, which it leaves alone, start with a connector that says it knows
    them, and with no other."""

    def __init__(self, vllm_config, role, kv_cache_config):
        super().__init__(vllm_config=vllm_config, role=role, kv_cache_config=kv_cache_config)
        transfer = self._kv_transfer_config
        if transfer.kv_load_failure_policy != "recompute":
            raise ValueError(
                "PortolanConnector needs kv_load_failure_policy 'recompute': a block that does not come is computed, "
                f"and with {transfer.kv_load_failure_policy!r} its request would fail"
            )
        socket = transfer.get_from_extra_config("socket", None)
        if not socket:
            raise ValueError("PortolanConnector needs kv_connector_extra_config {'socket': PATH}")
        scheduler = role == KVConnectorRole.SCHEDULER
        self._shape = Shape(vllm_config, kv_cache_config, 0 if scheduler else _rank())
        timeout = FIND_WITHIN if scheduler else LOAD_WITHIN
        hello = self._shape.hello if scheduler else self._shape.part
        self._client = Client(socket, hello, timeout) if hello else None
        if not hello:
            logger.warning("no KV is handed to or taken from Portolan: %s", self._shape.reason)
        self._quiet = False
        if scheduler and not hello:
            # So that whoever watches the host sees it: nothing but speed would show it.
            threading.Thread(target=self._say_idle, args=(socket,), name="portolan-idle", daemon=True).start()
        # The scheduler's.
        self._found = {}
        self._loads = []
        self._open = {}
        self._aside = 0
        self._turn = time.time_ns()
        # The worker's.
        self._layers = vllm_config.compilation_config.static_forward_context
        self._arrangement = None
        self._failed = set()
        self._waiting = queue.Queue(SAVES_WAITING)
        if self._client is not None and not scheduler:
            # A connection of its own: what is saved does not hold up what is loaded.
            self._saver = Client(socket, hello, LOAD_WITHIN)
            threading.Thread(target=self._save, name="portolan-save", daemon=True).start()

    def _say_idle(self, socket):
        client = Client(socket, {}, LOAD_WITHIN)
        while True:
            try:
                return client.idle(f"vllm {vllm_version}", self._shape.reason)
            except Refused:
                return None
            except Unreachable:
                time.sleep(IDLE_AGAIN)

    def _note(self, error):
        if not self._quiet:
            logger.warning("Portolan: %s; prompts are computed", error)
        self._quiet = True

    # ---- the scheduler's side

    def _is_meant(self, request):
        plain = not request.mm_features and request.lora_request is None and request.prompt_embeds is None
        return self._client is not None and plain and request.cache_salt is not None and request.prompt_token_ids

    def get_num_new_matched_tokens(self, request, num_computed_tokens):
        if not self._is_meant(request):
            self._aside += 1
            return 0, False
        block = self._shape.block
        # One token is left to compute: its logits are the answer's beginning.
        whole = (request.num_tokens - 1) // block
        try:
            tokens = list(request.all_token_ids[: whole * block])
            found = self._client.find(request.cache_salt, tokens, self._aside) if whole else 0
            self._quiet = False
            self._aside = 0 if whole else self._aside
        except Unreachable as error:
            self._note(error)
            found = 0
        self._found[request.request_id] = (found, num_computed_tokens // block)
        return max(0, found * block - num_computed_tokens), False

    def update_state_after_alloc(self, request, blocks, num_external_tokens):
        if not self._is_meant(request):
            return
        found, first = self._found.pop(request.request_id, (0, 0))
        # What the host has need not be handed over.
        self._open[request.request_id] = [request, found]
        if num_external_tokens > 0:
            last = first + num_external_tokens // self._shape.block
            self._loads.append((request, first, last))

    def build_connector_meta(self, scheduler_output):
        step, block = Step(), self._shape.block if self._client is not None else 0
        for request, first, last in self._loads:
            if request.request_id in scheduler_output.num_scheduled_tokens:
                step.loads.append(self._move(request, first, last))
        self._loads.clear()
        for name, scheduled in scheduler_output.num_scheduled_tokens.items():
            entry = self._open.get(name)
            if entry is None:
                continue
            request, saved = entry
            # The scheduler counts a step's tokens as computed once it has put the step together.
            filled = min(self._computed(scheduler_output, request) + scheduled, request.num_tokens) // block
            if filled > saved:
                step.saves.append(self._move(request, saved, filled))
                entry[1] = filled
        return step

    def _computed(self, scheduler_output, request):
        for new in scheduler_output.scheduled_new_reqs:
            if new.req_id == request.request_id:
                return new.num_computed_tokens
        cached = scheduler_output.scheduled_cached_reqs
        return cached.num_computed_tokens[cached.req_ids.index(request.request_id)]

    def _move(self, request, first, last):
        ids = self._kv_cache_manager.get_block_ids(request.request_id)[0]
        tokens = list(request.all_token_ids[: last * self._shape.block])
        self._turn += 1
        return Move(request.cache_salt, tokens, first, list(ids[:last]), self._turn)

    def update_connector_output(self, connector_output):
        # What was to be handed over in a step that began on blocks which did not come was not.
        failed = connector_output.invalid_block_ids
        for request, entry in ((entry[0], entry) for entry in self._open.values()) if failed else ():
            ids = self._kv_cache_manager.get_block_ids(request.request_id)[0]
            first = next((at for at, block in enumerate(ids) if block in failed), None)
            if first is not None:
                entry[1] = min(entry[1], first)

    def request_finished(self, request, block_ids):
        self._open.pop(request.request_id, None)
        self._found.pop(request.request_id, None)
        return False, None

    def request_finished_all_groups(self, request, block_ids):
        return self.request_finished(request, block_ids)

    # ---- the worker's side

    def _arranged(self):
        """How blocks are arranged, once the backend was asked; none where it is not known."""
        if self._arrangement is None:
            names = self._shape.layers
            layers, size = [self._layers[n] for n in names], (self._shape.block, self._shape.width)
            found = [Arrangement.found(layer, layer.kv_cache, *size) for layer in layers]
            known = all(found) and len({each.name for each in found}) == 1
            self._arrangement = (found[0] if known else False,)
            if known:
                logger.info("blocks lie as %s in this engine's memory", found[0].name)
            else:
                logger.warning("no KV is handed to or taken from Portolan: blocks lie as nobody here knows")
        return self._arrangement[0]

    def start_load_kv(self, forward_context, **kwargs):
        for move in self._get_connector_metadata().loads:
            done = move.first
            try:
                done = self._load(move)
                self._quiet = False
            except Unreachable as error:
                self._note(error)
            self._failed.update(move.ids[done:])

    def _load(self, move):
        """Loads a request's blocks; the first that is lacking."""
        arrangement, at, block = self._arranged(), move.first, self._shape.block
        while arrangement and at < len(move.ids):
            # So many at once as come in one piece; before the first hello, one.
            most = max(1, PIECE // self._client.block_bytes) if self._client.block_bytes else 1
            end = min(at + most, len(move.ids))
            came = self._client.load(move.salt, move.tokens[: end * block], at)
            for data in came:
                self._write(arrangement, move.ids[at], data)
                at += 1
            if at < end:
                break
        return at

    def _write(self, arrangement, block, data):
        size = len(data) // len(self._shape.layers)
        for at, name in enumerate(self._shape.layers):
            arrangement.write(self._layers[name].kv_cache[block], data[at * size : (at + 1) * size])

    def wait_for_layer_load(self, layer_name):
        return

    def save_kv_layer(self, layer_name, kv_layer, attn_metadata, **kwargs):
        return

    def wait_for_save(self):
        for move in self._get_connector_metadata().saves:
            # What was computed on blocks that did not come is nobody's KV.
            if not self._failed.isdisjoint(move.ids) or not self._arranged() or self._waiting.full():
                continue
            layers = [self._layers[name].kv_cache for name in self._shape.layers]
            read = self._arranged().read
            blocks = [b"".join(read(layer[block]) for layer in layers) for block in move.ids[move.first :]]
            self._waiting.put_nowait((move, blocks))

    def _save(self):
        while True:
            move, blocks = self._waiting.get()
            size, block = max(1, len(blocks[0])), self._shape.block
            most = max(1, PIECE // size)
            try:
                for at in range(0, len(blocks), most):
                    part = blocks[at : at + most]
                    first = move.first + at
                    tokens = move.tokens[: (first + len(part)) * block]
                    self._saver.save(move.salt, tokens, first, part, move.turn)
            except Unreachable as error:
                self._note(error)

    def get_block_ids_with_load_errors(self):
        failed, self._failed = self._failed, set()
        return failed

    def shutdown(self):
        for client in (self._client, getattr(self, "_saver", None)):
            if client is not None:
                client.close()


def _rank():
    from vllm.distributed.parallel_state import get_tensor_model_parallel_rank

    return get_tensor_model_parallel_rank()

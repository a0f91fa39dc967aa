"""The store of a group of processes listens on the host that it was given, and on no other."""

import importlib
from datetime import timedelta

import psutil

from conformance.engines.vllm import patches
from conformance.engines.vllm.patches import PatchPlace


def test_a_store_listens_on_its_own_host():
    rendezvous = importlib.import_module("torch.distributed.rendezvous")
    before = _listening()
    with patches.applied(PatchPlace.CLIENT):
        store = rendezvous._create_c10d_store("127.0.0.1", 0, 0, 1, timedelta(seconds=20))
    assert [host for host, port in _listening() - before] == ["127.0.0.1"]
    store.set("key", "value")
    assert store.get("key") == b"value"
    assert (store.host, store.port) in _listening()


def _listening():
    found = psutil.Process().net_connections(kind="inet")
    return {tuple(one.laddr) for one in found if one.status == psutil.CONN_LISTEN}

"""The kinds of faults. Each causes its fault for as long as it lasts, and has undone it when it returns.

Where a commit is held (`held.py`), the harm is done to the driver whose commit it is, and to the broker that it waits for; the
commit goes on as soon as the fault is in place.
"""

from __future__ import annotations

import random
import shutil
import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

import psutil
from confluent_kafka import KafkaException
from tests.support.coordinators import TRANSACTIONS, transaction_coordinator
from tests.system.chaos.kinds import Fault, Needs, NothingToHarm, When, kind
from tests.system.chaos.proxy import ADD_PARTITIONS, END_TXN, OFFSET_COMMIT, Hold, Proxy
from tests.system.chaos.supervised import Supervised
from tests.system.chaos.world import INSTANCES, World
from tests.system.crash import disk, probe
from tests.system.crash.scenarios import MIDDLES, STEPS

from tidemark.errors import OutcomeUnknown
from tidemark.kafka.offsets import describe_group
from tidemark.names import transactional_id
from tidemark.processes import wait_until
from tidemark.settings import Settings

T = TypeVar("T")
UNHARMED = "nothing, but that a commit is held for 30 s"
"""What shows that outputs come again because of a fault, and not because a commit was held."""
DISK_OF_BROKER = 1
"""The broker that has a disk of its own, where not all have."""
_TAKES_OVER = "another broker becomes the group's coordinator before the commit gives up, as a rule"
_STEP = "a step"
"""What the kinds act on that wait for a driver to come to a step: a driver that another fault has harmed does not, but its
sister does."""
_ARMED_S = 30
_HELD_S = 40
_ANSWERED_S = 120
_COMES_S = 60


def _input(name: str) -> Callable[[Fault], Fault]:
    return kind(name, name, spares="input has no part in a commit that is held")


class Longest(random.Random):
    """Chance that draws the longest duration of those that are possible: longer than a commit waits for what it needs."""

    def uniform(self, a: float, b: float) -> float:
        return max(a, b)


def _lasts(world: World, seconds: float, when: Callable[[], bool] | None = None) -> None:
    """The fault is in place, once `when` holds if it is given, and stays for so long."""
    world.in_place(when)
    threading.Event().wait(seconds)


def _require(is_harmed: bool, what: str) -> None:
    """Raise `NothingToHarm` if the fault has not happened."""
    if not is_harmed:
        raise NothingToHarm(what)


def _kill(one: Supervised) -> None:
    """SIGKILL. Raises `NothingToHarm` if the process does not run."""
    _require(one.send(signal.SIGKILL), f"{one.name} does not run")


def _answered(question: Callable[[], T]) -> T:
    """Ask brokers until they answer: the one that was killed last may have been the leader or coordinator that is asked for."""
    deadline = time.monotonic() + _ANSWERED_S
    while True:
        try:
            return question()
        except (KafkaException, OutcomeUnknown):
            if time.monotonic() > deadline:
                raise
            threading.Event().wait(0.5)


def _one(world: World, chance: random.Random) -> int:
    """An instance: the one whose commit is held, or any."""
    return chance.choice(list(world.instances)) if world.held is None else world.held.number


def _a_broker(world: World, chance: random.Random) -> int:
    """The broker that takes the offsets of a commit that is held, or any, of those that are alive if there are some."""
    if world.held is not None:
        return _coordinator(world)
    return chance.choice(world.brokers.alive() or list(world.brokers.cluster.node_ids))


def _coordinator(world: World) -> int:
    """The broker that takes the group's offsets."""
    settings = Settings.load(bootstrap_servers=world.bootstrap)
    group = _answered(lambda: describe_group(settings, world.admin, world.application_id))
    return int(group.coordinator.id)


@kind(UNHARMED, spares="the measure of the others", when=When.HELD)
def _(_world: World, _chance: random.Random) -> None:
    """No fault."""
    threading.Event().wait(30)


@kind("driver: SIGKILL")
def _(world: World, chance: random.Random) -> None:
    _kill(world.instances[_one(world, chance)])


@kind("driver: SIGTERM", spares="a driver that is told to stop ends behind its commit")
def _(world: World, chance: random.Random) -> None:
    one = world.instances[_one(world, chance)]
    process = one.process
    _require(one.send(signal.SIGTERM), f"{one.name} does not run")
    world.in_place()
    wait_until(lambda: one.process is not process, 60)


@kind("driver: SIGSTOP for 1 to 5 s", spares="shorter than the member's session, unless a heartbeat was due")
def _(world: World, chance: random.Random) -> None:
    _stopped(world, world.instances[_one(world, chance)], chance.uniform(1, 5))


@kind("driver: SIGSTOP for 15 to 60 s")
def _(world: World, chance: random.Random) -> None:
    _stopped(world, world.instances[_one(world, chance)], chance.uniform(15, 60))


@kind("driver: SIGKILL at a step of a commit", _STEP)
def _(world: World, chance: random.Random) -> None:
    _armed(world, chance.choice([*STEPS, *MIDDLES]))


@kind("driver: SIGSTOP at a step of a commit", _STEP)
def _(world: World, chance: random.Random) -> None:
    before = {number: one.process for number, one in world.instances.items()}
    _armed(world, chance.choice(STEPS), "SIGSTOP")
    _lasts(world, chance.uniform(5, 20))
    for number, process in before.items():
        if process is not None and world.instances[number].process is process:
            world.instances[number].send(signal.SIGCONT)


@kind("driver: SIGKILL in a rebalance", _STEP)
def _(world: World, chance: random.Random) -> None:
    probe.arm(world.arm_file, "rebalance", 1)
    world.instances[_one(world, chance)].send(signal.SIGKILL)
    _await_point(world, "rebalance")


@kind(
    "clock: a driver's an hour ahead for 5 to 20 s",
    _STEP,
    spares="a commit notes the time, and waits by another clock",
)
def _(world: World, chance: random.Random) -> None:
    _clock_wrong(world, chance, 3_600)


@kind(
    "clock: a driver's an hour behind for 5 to 20 s",
    _STEP,
    spares="a commit notes the time, and waits by another clock",
)
def _(world: World, chance: random.Random) -> None:
    _clock_wrong(world, chance, -3_600)


@kind("both drivers: SIGKILL", "driver")
def _(world: World, _chance: random.Random) -> None:
    found = [one.send(signal.SIGKILL) for one in world.instances.values()]
    _require(any(found), "no driver runs")


@kind("JVM: SIGKILL", "instance", spares="a commit is the driver's alone")
def _(world: World, chance: random.Random) -> None:
    jvms = world.instances[_one(world, chance)].jvms()
    _require(bool(jvms), "the driver has no JVM")
    for jvm in jvms:
        with suppress(psutil.Error):
            jvm.kill()
    world.in_place(lambda: not any(_is_alive(jvm) for jvm in jvms))


@kind("JVM: SIGSTOP for 5 to 30 s", "instance", spares="a commit is the driver's alone")
def _(world: World, chance: random.Random) -> None:
    jvms = world.instances[_one(world, chance)].jvms()
    _require(bool(jvms), "the driver has no JVM")
    for jvm in jvms:
        with suppress(psutil.Error):
            jvm.suspend()
    _lasts(world, chance.uniform(5, 30))
    for jvm in jvms:
        with suppress(psutil.Error):
            jvm.resume()


@kind("standby: SIGKILL", spares="a standby has no part in commits")
def _(world: World, _chance: random.Random) -> None:
    _kill(world.standby)


@kind("standby: SIGSTOP for 5 to 20 s", spares="a standby has no part in commits")
def _(world: World, chance: random.Random) -> None:
    _stopped(world, world.standby, chance.uniform(5, 20))


@kind("state lost", "driver")
def _(world: World, chance: random.Random) -> None:
    number = _one(world, chance)
    is_killed = world.instances[number].send(signal.SIGKILL)
    folders = list(world.state_dir(f"machine-{number}").glob("*"))
    _require(is_killed or bool(folders), f"instance {number} neither runs nor has state")
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)


@kind("second copy of an instance", "instance")
def _(world: World, chance: random.Random) -> None:
    number = _one(world, chance)
    process = world.instances[number].process
    with world.guest(number, "elsewhere") as guest:
        has_come = wait_until(lambda: world.runs(number, guest.process) or guest.process.poll() is not None, _COMES_S)
        world.in_place()
        # One of the two ends; both may be launched again by who watches them, as two operators do.
        wait_until(lambda: world.instances[number].process is not process or guest.process.poll() is not None, 60)
    shutil.rmtree(world.state_dir("elsewhere"), ignore_errors=True)
    _require(has_come, f"the copy did not run within {_COMES_S} s")


@kind("third instance comes and goes", "instance", spares="a rebalance waits for the commit in hand")
def _(world: World, chance: random.Random) -> None:
    with world.guest(INSTANCES, "third"):
        has_come = wait_until(lambda: _answered(world.members) > INSTANCES, _COMES_S, 0.5)
        _require(has_come, f"the instance did not join within {_COMES_S} s")
        _lasts(world, chance.uniform(15, 30))


@kind(
    "broker: a leader of the source killed",
    spares="a commit does not ask it, unless it is the group's coordinator",
)
def _(world: World, chance: random.Random) -> None:
    topics = _answered(lambda: world.admin.list_topics("chaos-numbers", timeout=15)).topics
    _killed(world, [chance.choice(list(topics["chaos-numbers"].partitions.values())).leader], chance)


@kind("broker: the group's coordinator killed", spares=_TAKES_OVER)
def _(world: World, chance: random.Random) -> None:
    _killed(world, [_coordinator(world)], chance)


@kind("broker: a transaction coordinator killed", spares="there are no transactions")
def _(world: World, chance: random.Random) -> None:
    metadata = _answered(lambda: world.admin.list_topics(TRANSACTIONS, timeout=15))
    name = transactional_id(world.application_id, _one(world, chance))
    _killed(world, [transaction_coordinator(name, metadata)], chance)


@kind("broker: the controller killed", spares="a commit does not ask it, unless it is the group's coordinator")
def _(world: World, chance: random.Random) -> None:
    admin = world.admin
    cluster = _answered(lambda: admin.describe_cluster(request_timeout=15).result(20))
    _killed(world, [cluster.controller.id], chance)


@kind("broker: two of three killed")
def _(world: World, chance: random.Random) -> None:
    one = _a_broker(world, chance)
    _killed(world, [one, *chance.sample([node for node in world.brokers.alive() if node != one], 1)], chance)


@kind("broker: all killed")
def _(world: World, chance: random.Random) -> None:
    _killed(world, world.brokers.alive(), chance)


@kind("broker: SIGSTOP for 5 to 20 s", spares=_TAKES_OVER)
def _(world: World, chance: random.Random) -> None:
    with world.brokers.stopped(_a_broker(world, chance)):
        _lasts(world, chance.uniform(5, 20))


@kind(
    "broker: one after the other restarted",
    spares=_TAKES_OVER,
)
def _(world: World, chance: random.Random) -> None:
    first = _a_broker(world, chance)
    for node in sorted(world.brokers.cluster.node_ids, key=lambda node: node != first):
        world.brokers.cluster.stop_node(node)
        world.in_place()
        world.brokers.cluster.start_node(node)


@kind("network: delay of 0.1 to 0.5 s", spares="offsets come late, but they come")
def _(world: World, chance: random.Random) -> None:
    _disturbed(world, lambda proxy: proxy.slow(delay_s=chance.uniform(0.1, 0.5)), chance.uniform(5, 15))


@kind("network: slow, 200 to 1000 kB/s", spares="offsets come late, but they come")
def _(world: World, chance: random.Random) -> None:
    _disturbed(world, lambda proxy: proxy.slow(bytes_per_s=chance.uniform(200e3, 1e6)), chance.uniform(5, 15))


@kind("network: all connections cut", spares="the client connects and sends the offsets again")
def _(world: World, chance: random.Random) -> None:
    for _ in range(chance.randint(1, 3)):
        for proxy in world.brokers.proxies.values():
            proxy.cut()
        _lasts(world, chance.uniform(0.2, 2))


@kind("network: one broker unreachable for 3 to 15 s")
def _(world: World, chance: random.Random) -> None:
    proxy = world.brokers.proxies[_a_broker(world, chance)]
    proxy.close()
    _lasts(world, chance.uniform(3, 15))
    proxy.open()


@kind("network: no broker reachable for 5 to 40 s")
def _(world: World, chance: random.Random) -> None:
    _disturbed(world, Proxy.close, chance.uniform(5, 40))


@kind("network: the end of a transaction comes in the next one", when=When.FREE)
def _(world: World, chance: random.Random) -> None:
    _held_back(world, chance, END_TXN, ADD_PARTITIONS)


@kind("network: the offsets of a transaction come in the next one", when=When.FREE)
def _(world: World, chance: random.Random) -> None:
    _held_back(world, chance, OFFSET_COMMIT, OFFSET_COMMIT)


@kind("network: a late end of a transaction, then SIGKILL", when=When.FREE)
def _(world: World, chance: random.Random) -> None:
    _held_back(world, chance, END_TXN, ADD_PARTITIONS)
    _kill(world.instances[_one(world, chance)])


@kind("disk full: state", spares="stores are written behind the offsets", needs=Needs.DISKS)
def _(world: World, chance: random.Random) -> None:
    _full(world, world.state_dir("machine-0"), chance.uniform(5, 20))


@kind("disk full: var", spares="nothing of a commit is written there", needs=Needs.DISKS)
def _(world: World, chance: random.Random) -> None:
    _full(world, world.var_dir, chance.uniform(5, 20))


@kind("disk full: broker", "broker", spares=_TAKES_OVER, needs=Needs.DISKS)
def _(world: World, chance: random.Random) -> None:
    node = DISK_OF_BROKER if world.held is None else _coordinator(world)
    # A broker without a log folder ends by itself.
    _full(world, world.brokers.disk(node), chance.uniform(7, 17), when=lambda: node not in world.brokers.alive())
    world.brokers.cluster.start()


@_input("input: not JSON")
def _(world: World, chance: random.Random) -> None:
    for _ in range(chance.randint(1, 50)):
        world.feeding.poison("chaos-events", b"i001", chance.choice([b"{broken", b"", b"\xff\xfe", b"[]", b"null"]))


@_input("input: a key that is no text")
def _(world: World, chance: random.Random) -> None:
    for key in (b"\xff", b"i00\xc3", b"\x00\xfe"):
        world.feeding.poison("chaos-events", key, {"id": "i003", "v": chance.randint(1, 9), "kind": "kind-0"})


@_input("input: larger than the topic of dead letters takes")
def _(world: World, _chance: random.Random) -> None:
    world.feeding.poison("chaos-events", b"i004", world.feeding.large())


@_input("input: refused by user code")
def _(world: World, chance: random.Random) -> None:
    for _ in range(chance.randint(1, 20)):
        world.feeding.poison("chaos-events", b"i000", world.feeding.refused())


@_input("input: impossible times")
def _(world: World, chance: random.Random) -> None:
    ahead = int(time.time() * 1000) + 7_200_000
    for at_ms in (-1, ahead, ahead * 10):
        world.feeding.poison("chaos-events", b"i005", {"id": "i005", "ts": at_ms, "v": 1, "kind": "k"})


@_input("input: ten times as much")
def _(world: World, chance: random.Random) -> None:
    rates = world.feeding.rates
    usual, rates.numbers = rates.numbers, 10 * rates.numbers
    _lasts(world, chance.uniform(5, 10))
    rates.numbers = usual


@_input("input: one key has half of all records")
def _(world: World, chance: random.Random) -> None:
    world.feeding.rates.hot_share = 0.5
    _lasts(world, chance.uniform(5, 20))
    world.feeding.rates.hot_share = 0.0


def _is_alive(process: psutil.Process) -> bool:
    """Whether it runs; one that its parent has not asked after does not."""
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _stopped(world: World, one: Supervised, seconds: float) -> None:
    _require(one.send(signal.SIGSTOP), f"{one.name} does not run")
    _lasts(world, seconds)
    one.send(signal.SIGCONT)


def _armed(world: World, point: str, how: str = "SIGKILL", clock: tuple[float, float] | None = None) -> None:
    if world.held is not None and clock is None:
        one = world.instances[world.held.number]
        _require(one.send(signal.Signals[how]), f"{one.name} does not run")
        return
    probe.arm(world.arm_file, point, 1, how, clock=clock)
    _await_point(world, point)


def _await_point(world: World, point: str) -> None:
    """Wait until a driver has come to the point. Raises `NothingToHarm` if none does."""
    is_reached = wait_until(lambda: not world.arm_file.exists(), _ARMED_S)
    world.arm_file.unlink(missing_ok=True)
    _require(is_reached, f"no driver came to {point} within {_ARMED_S} s")


def _clock_wrong(world: World, chance: random.Random, ahead_s: float) -> None:
    for_s = chance.uniform(5, 20)
    _armed(world, chance.choice(STEPS), clock=(ahead_s, for_s))
    _lasts(world, for_s)


def _killed(world: World, nodes: list[int], chance: random.Random) -> None:
    known = [node for node in nodes if node in world.brokers.cluster.node_ids]
    _require(bool(known), "there is no such broker now")
    for node in known:
        world.brokers.cluster.kill_node(node)
    _lasts(world, chance.uniform(0, 10))
    world.brokers.cluster.start()


def _disturbed(world: World, disturb: Callable[[Proxy], None], seconds: float) -> None:
    for proxy in world.brokers.proxies.values():
        disturb(proxy)
    _lasts(world, seconds)
    for proxy in world.brokers.proxies.values():
        proxy.open()


def _held_back(world: World, chance: random.Random, request: int, until: int) -> None:
    """Deliver one request late. Raises `NothingToHarm` if no such request comes."""
    hold = Hold(transactional_id(world.application_id, _one(world, chance)), request, until)
    for proxy in world.brokers.proxies.values():
        proxy.hold = hold
    came = wait_until(lambda: bool(hold.replies), _HELD_S)
    for proxy in world.brokers.proxies.values():
        proxy.hold = None
    _require(came, f"no request came late within {_HELD_S} s")


def _full(world: World, folder: Path, seconds: float, when: Callable[[], bool] | None = None) -> None:
    disk.fill(folder)
    try:
        _lasts(world, seconds, when)
    finally:
        disk.free(folder)

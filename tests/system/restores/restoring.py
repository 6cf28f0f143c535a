"""One draw: prepares an application, damages it, repairs it as the messages say, and compares."""

from __future__ import annotations

import json
import random
import re
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from tests.support.truth.compare import Claim
from tests.support.truth.topics import committed_offsets, end_offsets, partitions
from tests.system.crash import disk
from tests.system.crash.scenarios import Tally
from tests.system.restores.drawn import Drawn, Family
from tests.system.restores.faults import POISONED_STORE
from tests.system.restores.scene import Said, Scene, killed

from tidemark.names import TaskId, commits_topic, dlq_topic, topology_topic
from tidemark.operations.workspace import RestoreState

_REFUSALS = 5
"""Remedies that may follow one another."""


class Verdict(StrEnum):
    """Of one draw; see `make restores`."""

    EQUAL = "equal"
    REFUSED = "refused"
    WRONG = "WRONG"
    SILENT = "SILENT"


@dataclass
class Outcome:
    """`reasons` of what was refused or found, in a few words each; `faults` in lines."""

    verdict: Verdict
    reasons: list[str] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    remedies: list[str] = field(default_factory=list)


REASONS: dict[str, tuple[str, tuple[str, ...]]] = {
    "changelog deleted": (r"changelog \S+ was deleted:", ("changelog deleted",)),
    "changelog made again": (r"changelog \S+ was deleted and created again", ("changelog made again",)),
    "changelog truncated": (
        r"everything up to offset|ends at offset \d+,? but was|are too young for retention",
        ("changelog truncated", "changelog's beginning purged"),
    ),
    "purged beginning": (
        r"has lost its beginning|is older than the beginning of",
        ("changelog's beginning purged", "changelog truncated"),
    ),
    "purged source": (r"the records in between have been deleted", ("source purged past",)),
    "source made again": (r"source topic \S+ was deleted and created again", ("source made again",)),
    "commits deleted": (r"commits topic \S+ was deleted", ("commits deleted",)),
    "description deleted": (r"-topology was deleted or emptied", ("description deleted",)),
    "repartition topic deleted": (r"repartition topic \S+ was deleted", ("repartition topic deleted",)),
    "disk full": (r"[Nn]o space left|disk is full|free (its disk|disk space)", ("disk full",)),
    "plan file of another id": (r"is not the id of a restore", ("plan file, of another id",)),
}
"""By the words in which they are grouped: how a message says it, and the kinds that justify it."""


class Draw:
    """One draw on a scene."""

    def __init__(self, scene: Scene, drawn: Drawn, chance: random.Random) -> None:
        self.scene, self.bench, self.drawn, self.chance = scene, scene.bench, drawn, chance
        self.tally = Tally()
        self.reasons: list[str] = []
        self.remedies: list[str] = []
        self.spoke: list[str] = []
        self._plan_file = self.bench.folder / "restore-plan.json"
        self._resume: tuple[str, ...] = ()
        self._purged = ""
        self._selection: tuple[str, ...] = ()

    def run(self) -> Outcome:
        """All of it. Instances run on where the state is right."""
        kind = self.drawn.kind
        # Changelogs are loaded by processes, or by threads.
        self.bench.restore_process_offsets = self.chance.choice((1, 1_000_000))
        first = self.scene.start(max(self.drawn.instances, 2 if "stale" in kind.name else 1))
        self.tally.expect(first is None, f"before anything was lost, {first}")
        if first is not None:
            return self._outcome()
        if not any(self.scene.topics.ends(self.scene.topics.sources).values()):
            self.bench.feeder.feed(self.bench.batch_records // 2)
        try:
            with self.scene.standby(kind.name == "standby"):
                self._before_death()
                self._die()
                self._after_death()
                self._lose()
                self._restore()
                self._start()
                if kind.name in ("standby", "changelog", "savepoint") and not self.drawn.killed_at:
                    found = self.scene.sources_of_plan()
                    self.tally.expect(kind.name.upper() in found, f"nothing came from {kind.name}, but from {found}")
            if self.tally.exact and not self.scene.is_spent:
                self._look_closer()
        finally:
            self.scene.free_disk()
            shutil.rmtree(self.bench.folder / "savepoints", ignore_errors=True)
            shutil.rmtree(self.bench.folder / "kept", ignore_errors=True)
            self._plan_file.unlink(missing_ok=True)
        return self._outcome()

    def _outcome(self) -> Outcome:
        if self.tally.exact:
            verdict = Verdict.REFUSED if self.reasons else Verdict.EQUAL
            return Outcome(verdict, self.reasons, [], self.remedies)
        lines = [*self.tally.report, self.tally.line()]
        is_silent = self.drawn.kind.family is not Family.HEALTHY and not self.spoke
        return Outcome(Verdict.SILENT if is_silent else Verdict.WRONG, self.reasons, lines, self.remedies)

    def _select(self) -> tuple[str, ...]:
        """The task and the store that alone are restored, where the kind says so: one that something was written of."""
        if not self.drawn.kind.name.startswith("run, one"):
            return ()
        stores = {topic: store for store, topic in self.scene.topics.changelogs().items()}
        written = sorted(place for place, end in self.scene.topics.ends(stores).items() if end)
        topic, partition = self.chance.choice(written)
        store = stores[topic]
        home = next(s for s in self.bench.plan.subtopologies if store in {spec.name for spec in s.stores})
        given = ("--task", str(TaskId(home.index, partition)))
        return (*given, "--store", store) if self.drawn.kind.name == "run, one store" else given

    # What comes before

    def _before_death(self) -> None:
        kind = self.drawn.kind
        self._level()
        self._selection = self._select()
        if "savepoint" in kind.name or "savepoint" in (kind.restore or ()) or "purged" in kind.name:
            self._do("savepoint", "take", "NAME")
        if "stale" in kind.name:
            kept = self.bench.folder / "kept"
            for number in self.scene.running:
                shutil.copytree(self.scene.holder(number), kept / str(number), ignore=_in_use)
        if kind.name == "plan file":
            self._do("restore", "plan", "NAME", "--out", str(self._plan_file))
        if kind.name.startswith("plan file, of"):
            self._do("restore", "plan", "NAME", "--out", str(self._plan_file))
        if self.drawn.running:
            self._fault()

    def _level(self) -> None:
        """Everything is committed by those that run."""
        ended = self.scene.start(len(self.scene.running))
        self.tally.expect(ended is None, f"before anything was lost, {ended}")

    def _die(self) -> None:
        scene, death = self.scene, self.drawn.death
        if self.drawn.kind.name == "disk full: commit":
            scene.full_disk_at("6-commit")
            self.bench.feeder.feed(self.bench.batch_records // 2)
            # A store that needs no more room ends nobody.
            if scene.wait_any_ended(20):
                self._hear("an instance ended as its disk was full", 10)
            scene.kill_all()
            scene.free_disk()
        elif death == "stopped":
            self.bench.feeder.feed(1000)
            scene.stop_all()
        elif death == "at random":
            self.bench.feeder.feed(self.bench.batch_records // 2)
            time.sleep(self.chance.uniform(0.0, 2.0))  # the random moment itself
            scene.kill_all()
        else:
            self.bench.arm(death)
            self.bench.feeder.feed(self.bench.batch_records // 2)
            # One that a fault has ended passes no point.
            self.tally.expect(scene.wait_any_ended() or self.drawn.running, f"{death} was not reached")
            scene.kill_all()

    def _after_death(self) -> None:
        if not self.drawn.running:
            self._fault()
        if "stale" in self.drawn.kind.name:
            self._place_stale_folders()
        # Input goes on arriving while nothing runs.
        if "made again" not in self.drawn.kind.name:
            self.bench.feeder.feed(self.chance.randrange(500, 2000))

    def _place_stale_folders(self) -> None:
        """An older state of each task in the folder of the instance that does not have it."""
        kept = self.bench.folder / "kept"
        tasks = [path for path in kept.glob("*/*_*") if path.is_dir()]
        for task in self.chance.sample(tasks, self.chance.randint(1, len(tasks))):
            others = [n for n in ("0", "1", "2") if not (self.scene.holder(n) / task.name).exists()]
            if others:
                shutil.copytree(task, self.scene.holder(self.chance.choice(others)) / task.name)

    # The fault

    def _fault(self) -> None:
        """What happens to the topics."""
        kind, topics, bench = self.drawn.kind, self.scene.topics, self.bench
        name = kind.name
        if name.startswith("changelog") and kind.family is Family.TOPIC:
            held = topics.changelogs()
            store = self.chance.choice(
                [s for s in held if bench.application_id != "patient-monitoring" or s == "pulse-counts"]
            )
            if "deleted" in name:
                topics.delete([held[store]])
            elif "made again" in name:
                topics.make_again(held[store])
            else:
                self._purged = "" if "truncated" in name else store
                self._purge_changelog(held[store], is_whole="truncated" in name)
        elif name.startswith("source purged"):
            self._purge_source(is_past="past" in name)
        elif name == "source made again":
            topic = self.chance.choice(topics.sources)
            topics.make_again(topic)
            bench.past.kept = {place: rows for place, rows in bench.past.kept.items() if place[0] != topic}
            bench.feeder.feed(bench.batch_records)
        elif name == "commits deleted":
            topics.delete([commits_topic(bench.application_id)])
        elif name == "description deleted":
            topics.delete([topology_topic(bench.application_id)])
        elif name == "repartition topic deleted":
            topics.delete([topics.repartition()])
        elif kind.family is Family.POISON:
            self._format(topics.poison(name.partition(": ")[2], POISONED_STORE[self.drawn.app], self.chance))
            bench.claim = Claim.NOTHING

    def _purge_changelog(self, topic: str, *, is_whole: bool) -> None:
        ends = {place: end for place, end in self.scene.topics.ends([topic]).items() if end}
        some = self.chance.sample(sorted(ends), self.chance.randint(1, len(ends)))
        part = 1.0 if is_whole else self.chance.uniform(0.05, 0.2)
        self.scene.topics.purge({place: max(1, int(ends[place] * part)) for place in some})
        self.bench.claim = Claim.WHAT_IS_LEFT

    def _purge_source(self, *, is_past: bool) -> None:
        topics = self.scene.topics
        if is_past:
            # What nobody has processed is lost.
            self.bench.feeder.feed(self.bench.batch_records // 4)
        topics.keep_sources()
        places = partitions(self.bench.bootstrap, topics.sources)
        committed = committed_offsets(self.bench.bootstrap, self.bench.application_id, places)
        ends = end_offsets(self.bench.bootstrap, places, "read_committed")
        some = self.chance.sample(places, self.chance.randint(1, len(places)))
        to = {
            place: ends[place] if is_past else max(0, committed[place] - self.chance.randrange(500)) for place in some
        }
        topics.purge({place: at for place, at in to.items() if at})

    def _lose(self) -> None:
        name = self.drawn.kind.name
        if name == "run, disk of a stale folder lost":
            shutil.rmtree(self.scene.holder(self.chance.choice((0, 1))), ignore_errors=True)
        elif name == "run, one store" and self.chance.random() < 0.5:
            _, task, _, store = self._selection
            for number in range(self.drawn.instances):
                shutil.rmtree(self.scene.holder(number) / task / "rocksdb" / store, ignore_errors=True)
        elif self.drawn.kind.loses_disk:
            self.scene.lose_disk()
        if name.endswith("purged, disk lost"):
            # The savepoint is elsewhere, until a message asks for it.
            (self.bench.folder / "savepoints").rename(self.bench.folder / "elsewhere")

    # The restore

    def _restore(self) -> None:
        kind = self.drawn.kind
        if kind.family is Family.DISK and kind.restore is not None:
            self._restore_on_a_full_disk()
            return
        if self.drawn.killed_at:
            self._kill_once_in_restore()
        if kind.restore is None:
            return
        if kind.name == "plan file, of another id":
            text = self._plan_file.read_text()
            self._plan_file.write_text(re.sub(r'"restore_id": "[^"]*"', '"restore_id": "../../0"', text))
            before = _listing(self.scene.state)
            said = self.scene.tidemark(*self._command())
            changed = sorted(before ^ _listing(self.scene.state))
            self.tally.expect(said.is_refusal and not changed, f"a plan of another id, {changed} changed: {said}")
            self._justify(said)
            self._plan_file.unlink(missing_ok=True)
        said = self.scene.tidemark(*self._command())
        if said.code != 0:
            self._refused(said, [0, 10] if "purged" in kind.name else [0])
        if kind.name == "rolled back":
            self._do("restore", "rollback", "NAME")

    def _command(self) -> tuple[str, ...]:
        given = self._resume or (
            ("--plan", str(self._plan_file))
            if self._plan_file.exists()
            else (*(self.drawn.kind.restore or ()), *self._selection)
        )
        return ("restore", "run", "NAME", *given, "--yes")

    def _kill_once_in_restore(self) -> None:
        self.bench.arm(str(self.drawn.killed_at))
        if self.drawn.kind.restore is not None:
            said = self.scene.tidemark(*self._command())
            self.tally.expect(killed(said), f"before {self.drawn.killed_at}, {said}")
            self.bench.arm_file.unlink(missing_ok=True)
            if not self._plan_file.exists():
                newest = json.loads(self.scene.tidemark("restore", "status", "NAME", "--json").text)[0]
                # Once it has begun to swap, another restore is refused.
                if newest["state"] == RestoreState.SWAPPING or self.chance.random() < 0.5:
                    self._resume = ("--resume", newest["id"])
            return
        # With nothing to replay the point is not passed: then there was nothing to kill.
        self.scene.start(self.drawn.instances)
        self.scene.kill_all()

    def _restore_on_a_full_disk(self) -> None:
        step, state = self.drawn.kind.name.partition(": ")[2], self.scene.state
        # With the first store built, the others are still to be fetched.
        points = {
            "fetch": "restore-built", "build": "restore-whole", "tail": "restore-tail", "verify": "restore-built",
            "swap": "swap-between",
        }  # fmt: skip
        if step in points:
            self.scene.full_disk_at(points[step])
        else:
            disk.fill(state)
        said = self.scene.tidemark(*self._command())
        self.tally.expect(said.code in (0, 30), f"on a full disk, {said}")
        self.tally.expect("Traceback" not in said.text, f"on a full disk, {said}")
        if said.code:
            self._justify(said)
        self.scene.free_disk()
        if said.code:
            self._do(*self._resumed(said))

    def _resumed(self, said: Said) -> tuple[str, ...]:
        """What the message names: going on, or planning again."""
        if found := re.search(r"--resume (\d{8}T\d{12}Z)", said.text):
            self._resume = ("--resume", found[1])
        return self._command()

    # The start, and what is said

    def _start(self) -> None:
        if self.drawn.kind.name == "disk full: start":
            self.scene.full_disk_at("restore-whole")
            said = self.scene.start(self.drawn.instances)
            if said is not None:
                self._hear(f"{said}", said.code)
                self.tally.expect(said.code in (10, 30), f"on a full disk, {said}")
                self._justify(said)
            self.scene.kill_all()
            self.scene.free_disk()
        for _ in range(_REFUSALS):
            said = self.scene.start(self.drawn.instances)
            if said is None:
                break
            self._refused(said, [])
            if self.scene.is_spent or not self.tally.exact:
                return
        else:
            self.tally.expect(False, f"refused {_REFUSALS} times, whatever the remedy: {said}")
            return
        if self.drawn.kind.family is Family.POISON:
            self._look_for_poison()
        else:
            self._compare(str(self.drawn))

    def _compare(self, what: str) -> None:
        found = self._compared(what)
        self.tally.lost += found.lost
        self.tally.duplicated += found.duplicated
        self.tally.wrong += found.wrong
        self.tally.report += found.report

    def _compared(self, what: str) -> Tally:
        """What differs now, told apart from what was wrong before."""
        self.bench.generations = self.scene.topics.generations()
        found = Tally()
        found.compare(self.bench, what, dict.fromkeys(self.scene.running, "state"))
        return found

    def _refused(self, said: Said, welcome: list[int]) -> None:
        """Something that was to go well did not: was that right, and does it help to do what it says?"""
        if said.code in welcome:
            self._hear(str(said), said.code)
            if said.code:
                self.reasons.append("not enough evidence")
            return
        if said.code not in (10, 30) or not self._justify(said):
            self.tally.expect(False, f"{said}")
            return
        self._remedy(said)

    def _justify(self, said: Said) -> bool:
        """Whether the drawn fault is what was refused for."""
        self._hear(str(said), said.code)
        kind = self.drawn.kind.name
        for reason, (words, kinds) in REASONS.items():
            if re.search(words, said.text) and any(kind.startswith(one) for one in kinds):
                if reason not in self.reasons:
                    self.reasons.append(reason)
                return True
        self.tally.expect(False, f"nothing that was drawn explains this: {said}")
        return False

    def _hear(self, text: str, code: int) -> None:
        if code:
            self.spoke.append(text)

    def _format(self, text: str) -> None:
        with (self.bench.folder / "commands.log").open("a") as file:
            file.write(f"# {text}\n")

    def _do(self, *arguments: str) -> None:
        said = self.scene.tidemark(*arguments)
        self.tally.expect(said.code == 0, f"{said}")

    # Remedies

    def _remedy(self, said: Said) -> None:
        """The first of those that the message names which is not refused."""
        remedies: list[tuple[str, Callable[[str], Said | None]]] = [
            ("tidemark repair run", self._repair_changelog),
            ("bring a copy of the state folder or a savepoint back", self._bring_savepoint_back),
            ("reset run NAME --to offsets --state keep", self._keep_state),
            ("`--state empty` computes the state", self._empty_state),
            ("--to earliest --state empty", self._empty_state),
            ("delete the application's changelogs", self._begin_without_state),
        ]
        named = [(words, act) for words, act in remedies if words in said.text]
        self.tally.expect(bool(named), f"no remedy is named: {said}")
        for words, act in named:
            refused = act(said.text)
            self.remedies.append(f"{words}{'' if refused is None else ' (refused)'}")
            if refused is None:
                return
            self._format(f"{words} was no remedy: {refused}")
            if not refused.is_refusal:
                break
        self.tally.expect(not named, f"no remedy helped: {said}")

    def _repair_changelog(self, _text: str) -> Said | None:
        purged = ("--store", self._purged) if self._purged else ()
        said = self.scene.tidemark("repair", "run", "NAME", *purged, "--yes")
        if said.is_refusal and "`--from local` if you know that another program has written" in said.text:
            audit = self._check("audit", "run", "NAME")
            self.tally.expect(audit.code == 1, f"a stranger has written to a changelog, and {audit}")
            said = self.scene.tidemark("repair", "run", "NAME", "--from", "local", "--yes")
        self._rewritten(said.code)
        return None if said.code == 0 else said

    def _keep_state(self, text: str) -> Said | None:
        """Offsets stay, but where the message names another one; changelogs that are lost are written again."""
        topics = self.scene.topics
        places = partitions(self.bench.bootstrap, topics.sources_of_reset())
        at = committed_offsets(self.bench.bootstrap, self.bench.application_id, places)
        lows = topics.lows(places)
        for topic, partition, offset in re.findall(r"--offset (\S+?):(\d+)=(\d+)", text):
            at[(topic, int(partition))] = int(offset)
        # Each task names its own; the others' are found by asking again.
        at = {place: max(offset, lows[place]) for place, offset in at.items()}
        given = [f"--offset={topic}:{partition}={offset}" for (topic, partition), offset in at.items()]
        said = self.scene.tidemark("reset", "run", "NAME", "--to", "offsets", "--state", "keep", *given, "--yes")
        self._rewritten(said.code)
        return None if said.code == 0 else said

    def _rewritten(self, code: int) -> None:
        if code == 0:
            self.bench.claim = Claim.LAST_VALUES

    def _empty_state(self, _text: str) -> Said | None:
        """A new life, judged by what is written from now on."""
        births = self._births()
        said = self.scene.tidemark("reset", "run", "NAME", "--to", "earliest", "--state", "empty", "--yes")
        if said.code:
            return said
        self.bench.past.since |= births
        self.bench.claim = Claim.LAST_VALUES
        return None

    def _begin_without_state(self, _text: str) -> Said | None:
        topics, app = self.scene.topics, self.bench.application_id
        internal = [t for t in topics.names() if t.startswith(f"{app}-") and t not in topics.users]
        gone = [t for t in internal if re.search(r"-(changelog(-\d+)?|repartition|commits|topology)$", t)]
        births = {place: end for place, end in self._births().items() if place[0] not in gone}
        topics.delete(gone)
        self.scene.lose_disk()
        self.scene.delete_group()
        self.bench.past.since = births
        self.bench.claim = Claim.EVERY_UPDATE
        return None

    def _births(self) -> dict[tuple[str, int], int]:
        """Where outputs and commits end."""
        app, plan = self.bench.application_id, self.bench.plan
        sinks = [topic for s in plan.subtopologies for topic in s.sink_topics]
        return self.scene.topics.ends([*sinks, dlq_topic(app), commits_topic(app)])

    def _bring_savepoint_back(self, _text: str) -> Said | None:
        elsewhere = self.bench.folder / "elsewhere"
        if not elsewhere.exists():
            return Said("bringing a savepoint back", 30, "there is none")
        elsewhere.rename(self.bench.folder / "savepoints")
        return None

    # What is asked where nothing was refused

    def _look_closer(self) -> None:
        """A changelog that lacks keys, which no start saw, must be seen by a drill."""
        if self.bench.claim is not Claim.WHAT_IS_LEFT:
            return
        self.bench.claim = Claim.LAST_VALUES
        strict = self._compared("the changelog as a whole")
        if strict.exact:
            return
        drill = self._check("drill", "run", "NAME", "--follow-batches", "0")
        if drill.code in (1, 10):
            self.reasons.append("purged beginning, by a drill")
            self._mend(self._repair_changelog)
        else:
            self.tally.expect(False, f"the changelog lacks keys, and {drill}")
            self.tally.report += strict.report[:5]

    def _check(self, *arguments: str) -> Said:
        said = self.scene.tidemark(*arguments, timeout_s=400)
        self._hear(str(said), said.code)
        return said

    def _look_for_poison(self) -> None:
        """Stores that a restore has not read it into are right, and a drill finds it; else an audit finds them wrong."""
        found = self._compared("a poisoned changelog")
        drill = self._check("drill", "run", "NAME", "--follow-batches", "0")
        if found.exact:
            self.tally.expect(drill.code == 1, f"the changelog is poisoned, and {drill}")
            if drill.code == 1:
                self.reasons.append("poisoned, by a drill")
                self._mend(self._repair_changelog)
            return
        audit = self._check("audit", "run", "NAME")
        if audit.code != 1:
            self.tally.expect(False, f"a store is poisoned, and {audit}")
            self.tally.report += found.report[:5]
            return
        self.reasons.append("poisoned, by an audit")
        self._mend(self._empty_state)

    def _mend(self, remedy: Callable[[str], Said | None]) -> None:
        self.scene.stop_all()
        refused = remedy("")
        self.tally.expect(refused is None, f"the changelog is damaged, and {refused}")
        again = self.scene.start(self.drawn.instances)
        self.tally.expect(again is None, f"after the remedy, {again}")
        if again is None:
            self._compare(f"{self.drawn}, mended")


def _in_use(folder: str, names: list[str]) -> list[str]:
    """Files of a running store that a copy leaves out: locks."""
    return [name for name in names if name in ("LOCK", ".lock")]


def _listing(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.name != ".lock"}


def one_restore(scene: Scene, drawn: Drawn, chance: random.Random) -> Outcome:
    """Run one draw; what was wrong, refused or silent in it."""
    return Draw(scene, drawn, chance).run()

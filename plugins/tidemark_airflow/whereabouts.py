"""Looks up the other copy of a fenced instance in the consumer group."""

from __future__ import annotations

from dataclasses import dataclass

from tidemark.names import group_instance_id
from tidemark.settings import Settings
from tidemark.supervision.instance_files import InstanceFiles


@dataclass(frozen=True)
class Whereabouts:
    """Whether the other copy is a member of the group (None if the broker does not answer).

    `said` is a clause for a message.
    """

    is_member: bool | None
    said: str


def where_is_it(settings: Settings, files: InstanceFiles) -> Whereabouts:
    """Look for the group member with this instance's id. Asks the broker once."""
    from confluent_kafka import KafkaException
    from confluent_kafka.admin import AdminClient

    from tidemark.kafka.clients import librdkafka_config
    from tidemark.kafka.offsets import describe_group

    key = files.key
    wanted = group_instance_id(key.application_id, key.instance)
    try:
        found = describe_group(settings, AdminClient(librdkafka_config(settings)), key.application_id)
    except (KafkaException, KeyError) as error:
        return Whereabouts(None, f"the broker did not describe the group ({error})")
    for member in found.members:
        if member.group_instance_id == wanted:
            return Whereabouts(True, f"group {key.application_id} has it as {member.client_id} on {member.host}")
    return Whereabouts(False, f"group {key.application_id} has no member {wanted} at the moment")

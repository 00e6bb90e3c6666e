from apache_beam.io.gcp.pubsub import PubsubMessage

from millrace.model_manager.wire.request import FinishReason
from millrace.transforms.elements.completions import DEAD_LETTERS, Completion, DeadLetter
from millrace.transforms.streams.broker_messages import Outgoing
from millrace.transforms.streams.pubsub.writer import _fitting, _ToBeam

LARGE = Completion(id="a", text="x" * 10_000_000, finish_reason=FinishReason.STOP)


def test_what_pubsub_does_not_take_is_not_sent() -> None:
    large = _fitting(LARGE, gives_letters=False)
    assert isinstance(large, Outgoing)
    assert large.attributes["kind"] == "dead_letter"
    assert b"more than the broker takes" in large.data
    named = _fitting(Completion(id="x" * 2000, text="y", finish_reason=FinishReason.STOP), gives_letters=True)
    assert isinstance(named, Outgoing)
    assert named.attributes == {"kind": "result"}


def test_the_letter_of_what_is_too_large_is_given_where_it_is_asked_for() -> None:
    assert _fitting(LARGE, gives_letters=True) == DeadLetter(
        id="a", error="MessageTooLarge", reason="its 10,000,135 bytes are more than the broker takes"
    )
    sent, letter = (list(_ToBeam(gives_letters=gives).process(LARGE)) for gives in (False, True))
    assert isinstance(sent[0], PubsubMessage)
    assert (letter[0].tag, letter[0].value.error) == (DEAD_LETTERS, "MessageTooLarge")

from millrace.transforms.streams.pubsub import PubSubAddress


def test_addresses_are_paths() -> None:
    address = PubSubAddress.parse("pubsub:projects/my-project/topics/prompts")
    assert (address.is_topic, address.path) == (True, "projects/my-project/topics/prompts")
    assert str(address) == "pubsub:projects/my-project/topics/prompts"
    assert not PubSubAddress.parse("pubsub:projects/my-project/subscriptions/prompts").is_topic

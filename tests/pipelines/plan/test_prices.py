from datetime import date
from fractions import Fraction
from pathlib import Path

import pytest

from millrace.model_manager.wire.errors import ConfigError
from millrace.pipelines.flags.machines import GpuRequest
from millrace.pipelines.plan.prices import Prices

EXAMPLE = Path(__file__).parents[3] / "deploy/dataflow/prices.example.toml"
PRICES = """
checked = 2026-11-21
currency = "EUR"
vcpu = 0.05
memory_gb = 0.005
disk_gb = 0.0001
gpus = { l4 = 0.7 }
machines = { odd = { vcpus = 3, memory_gb = 10 } }
machine_hours = { whole = 1.5 }
"""


@pytest.fixture
def prices(tmp_path: Path) -> Prices:
    (tmp_path / "prices.toml").write_text(PRICES)
    return Prices.read(tmp_path / "prices.toml")


def hourly(prices: Prices, machine: str, gpu: str = "none", disk: int = 100) -> Fraction:
    return sum(prices.parts(machine, GpuRequest.parse(gpu), disk).values(), Fraction(0))


def test_a_worker_costs_the_sum_of_its_parts_to_the_last_digit(prices: Prices) -> None:
    assert hourly(prices, "n2-standard-8") == Fraction("0.57")  # 8 × 0.05 + 32 × 0.005 + 100 × 0.0001
    assert hourly(prices, "g2-standard-24", "l4:2") == Fraction("3.09")  # 24 × 0.05 + 96 × 0.005 + 2 × 0.7 + 0.01
    assert hourly(prices, "odd", disk=0) == Fraction("0.2")


def test_a_whole_machine_has_its_own_price_and_its_disk_comes_on_top(prices: Prices) -> None:
    assert hourly(prices, "whole", "l4") == Fraction("1.51")
    assert (prices.checked, prices.currency) == (date(2026, 11, 21), "EUR")


def test_what_has_no_price_is_named(prices: Prices) -> None:
    with pytest.raises(ConfigError, match=r"has no gpus\.t4"):
        hourly(prices, "n1-standard-8", "t4")
    with pytest.raises(ConfigError, match=r"has neither machines\.strange, its size, nor machine_hours\.strange"):
        hourly(prices, "strange")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (PRICES.replace("vcpu = 0.05", "vcpu = -1"), "vcpu=-1.0: a price takes 0 or more"),
        (PRICES.replace("l4 = 0.7", "l5 = 0.7"), "gpus.l5: takes the names of --gpu"),
        (PRICES.replace("disk_gb", "disc_gb"), "unknown price 'disc_gb': did you mean disk_gb?"),
        (PRICES.replace('currency = "EUR"', ""), "currency is missing"),
        ("vcpu = ", "prices.toml: "),
    ],
)
def test_what_is_wrong_with_a_file_is_one_sentence_that_names_it(text: str, told: str, tmp_path: Path) -> None:
    (tmp_path / "prices.toml").write_text(text)
    with pytest.raises(ConfigError) as caught:
        Prices.read(tmp_path / "prices.toml")
    assert told in str(caught.value)
    assert str(tmp_path / "prices.toml") in str(caught.value)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.toml: no such file"):
        Prices.read(tmp_path / "none.toml")


def test_the_example_is_whole_and_asks_to_be_checked() -> None:
    prices = Prices.read(EXAMPLE)
    assert hourly(prices, "g2-standard-8", "l4", disk=60) > 0
    assert "nobody vouches" in EXAMPLE.read_text()
